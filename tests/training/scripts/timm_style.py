#!/usr/bin/env python3
""" Image classification with an EMA of the weights, activation checkpoints, mixup and clipping,
in the manner of timm's train.py. Uses timm's own pieces.
"""
import argparse
import logging
import os
import time
from collections import OrderedDict

import torch
import torch.nn as nn
import torch.nn.functional as F
from timm.models import create_model
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from timm.utils import AverageMeter, ModelEmaV3, accuracy, dispatch_clip_grad, random_seed

_logger = logging.getLogger('train')

parser = argparse.ArgumentParser(description='PyTorch ImageNet Training')
parser.add_argument('--model', default='vit_tiny_patch16_224', type=str, metavar='MODEL')
parser.add_argument('--img-size', type=int, default=32)
parser.add_argument('-b', '--batch-size', type=int, default=8, metavar='N')
parser.add_argument('--opt', default='adamw', type=str)
parser.add_argument('--lr', type=float, default=1e-3, metavar='LR')
parser.add_argument('--weight-decay', type=float, default=0.05)
parser.add_argument('--clip-grad', type=float, default=1.0)
parser.add_argument('--clip-mode', type=str, default='norm')
parser.add_argument('--epochs', type=int, default=2, metavar='N')
parser.add_argument('--model-ema-decay', type=float, default=0.9)
parser.add_argument('--grad-checkpointing', action='store_true', default=True)
parser.add_argument('--drop-path', type=float, default=0.1)
parser.add_argument('--seed', type=int, default=42, metavar='S')


def train_one_epoch(epoch, model, batches, optimizer, loss_fn, args, lr_scheduler, model_ema, num_updates):
    losses_m = AverageMeter()
    model.train()
    start = time.time()
    for batch_idx, (input, target) in enumerate(batches):
        lam = 0.8
        input = lam * input + (1 - lam) * input.flip(0)
        soft = F.one_hot(target, 10) * lam + F.one_hot(target.flip(0), 10) * (1 - lam)
        output = model(input)
        loss = loss_fn(output, soft)
        optimizer.zero_grad()
        loss.backward()
        dispatch_clip_grad(model.parameters(), value=args.clip_grad, mode=args.clip_mode)
        optimizer.step()
        num_updates += 1
        model_ema.update(model, step=num_updates)
        losses_m.update(loss.item(), input.size(0))
        lr = sum(group['lr'] for group in optimizer.param_groups) / len(optimizer.param_groups)
        print(f'Train: {epoch} [{batch_idx}/{len(batches)}] Loss: {losses_m.val!r} ({losses_m.avg!r}) LR: {lr:.3e}')
        lr_scheduler.step_update(num_updates=num_updates, metric=losses_m.avg)
    _logger.debug('took %s', time.time() - start)
    return OrderedDict([('loss', losses_m.avg)]), num_updates


def validate(model, batches, loss_fn):
    top1_m = AverageMeter()
    model.eval()
    with torch.inference_mode():
        for input, target in batches:
            acc1, _ = accuracy(model(input), target, topk=(1, 5))
            top1_m.update(acc1.item(), input.size(0))
    return OrderedDict([('top1', top1_m.avg)])


def main():
    args = parser.parse_args()
    random_seed(args.seed, 0)
    model = create_model(args.model, pretrained=False, num_classes=10, img_size=args.img_size, depth=2, num_heads=2,
                         embed_dim=48, patch_size=8, drop_path_rate=args.drop_path)
    if args.grad_checkpointing:
        model.set_grad_checkpointing(enable=True)
    print(f'Model {args.model} created, param count:{sum(m.numel() for m in model.parameters())}')
    optimizer = create_optimizer_v2(model, opt=args.opt, lr=args.lr, weight_decay=args.weight_decay)
    model_ema = ModelEmaV3(model, decay=args.model_ema_decay)
    target = torch.randint(10, (48,))
    images = torch.randn(10, 3, 32, 32)[target] + 0.5 * torch.randn(48, 3, 32, 32)
    batches = list(zip(images.split(args.batch_size), target.split(args.batch_size)))
    lr_scheduler = CosineLRScheduler(optimizer, t_initial=args.epochs, warmup_t=1, warmup_lr_init=1e-5)
    loss_fn = nn.CrossEntropyLoss(label_smoothing=0.1)
    num_updates = 0
    for epoch in range(args.epochs):
        train_metrics, num_updates = train_one_epoch(
            epoch, model, batches, optimizer, loss_fn, args, lr_scheduler, model_ema, num_updates)
        eval_metrics = validate(model, batches, loss_fn)
        ema_metrics = validate(model_ema.module, batches, loss_fn)
        lr_scheduler.step(epoch + 1, eval_metrics['top1'])
        print(f'*** epoch {epoch}', dict(train_metrics), dict(eval_metrics), 'EMA', dict(ema_metrics))
    if os.environ.get('SAVE_WEIGHTS'):
        torch.save({'state_dict': model.state_dict(), 'state_dict_ema': model_ema.module.state_dict()},
                   os.environ['SAVE_WEIGHTS'])


if __name__ == '__main__':
    main()
