"""A tiny Llama trained from scratch by transformers' Trainer."""
import os
import sys

os.environ.setdefault("HF_HUB_OFFLINE", "1")

from transformers import (LlamaConfig, LlamaForCausalLM, PrinterCallback, Trainer, TrainerCallback,
                          TrainingArguments, set_seed)
import torch
from torch.utils.data import Dataset


class Sums(Dataset):
    """a + b = c, a digit a token."""

    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.pairs = torch.randint(0, 50, (n, 2), generator=g)

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, i):
        a, b = self.pairs[i].tolist()
        tokens = torch.tensor([a // 10, a % 10, 10, b // 10, b % 10, 11, (a + b) // 10, (a + b) % 10])
        labels = tokens.clone()
        labels[:6] = -100
        return {"input_ids": tokens, "labels": labels}


class PrintLosses(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        kept = {k: v for k, v in logs.items() if k in ("loss", "grad_norm", "learning_rate", "eval_loss")}
        print(state.global_step, kept)


def main(out):
    set_seed(0)
    config = LlamaConfig(vocab_size=12, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                         num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=16,
                         pad_token_id=None, bos_token_id=None, eos_token_id=None)
    model = LlamaForCausalLM(config)
    args = TrainingArguments(
        output_dir=out, max_steps=8, per_device_train_batch_size=8, gradient_accumulation_steps=2,
        learning_rate=3e-3, warmup_steps=2, lr_scheduler_type="cosine", max_grad_norm=0.5, weight_decay=0.1,
        logging_steps=1, logging_first_step=True, eval_strategy="steps", eval_steps=4, save_strategy="no",
        report_to=[], disable_tqdm=True, use_cpu=True, seed=0, dataloader_num_workers=0, gradient_checkpointing=True,
    )
    trainer = Trainer(model=model, args=args, train_dataset=Sums(256, 1), eval_dataset=Sums(32, 2),
                      callbacks=[PrintLosses()])
    trainer.remove_callback(PrinterCallback)  # it prints times
    result = trainer.train()
    print("steps", result.global_step, "training loss", result.training_loss)
    if os.environ.get("SAVE_WEIGHTS"):
        torch.save(model.state_dict(), os.environ["SAVE_WEIGHTS"])


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        main(sys.argv[1] if len(sys.argv) > 1 else folder)
