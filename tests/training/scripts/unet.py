"""Segmentation of discs with a small UNet (https://arxiv.org/abs/1505.04597) and a Dice loss."""
import logging
import os
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import optim

logging.basicConfig(level=logging.INFO, format='%(levelname)s: %(message)s')


class DoubleConv(nn.Module):
    """(convolution => [BN] => ReLU) * 2"""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.double_conv = nn.Sequential(
            nn.Conv2d(in_channels, out_channels, kernel_size=3, padding=1, bias=False),
            nn.BatchNorm2d(out_channels),
            nn.ReLU(inplace=True),
            nn.Conv2d(out_channels, out_channels, kernel_size=3, padding=1, bias=False),
            nn.BatchNorm2d(out_channels),
            nn.ReLU(inplace=True)
        )

    def forward(self, x):
        return self.double_conv(x)


class Up(nn.Module):
    """Upscaling then double conv"""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.up = nn.ConvTranspose2d(in_channels, in_channels // 2, kernel_size=2, stride=2)
        self.conv = DoubleConv(in_channels, out_channels)

    def forward(self, x1, x2):
        x1 = self.up(x1)
        diffY, diffX = x2.size()[2] - x1.size()[2], x2.size()[3] - x1.size()[3]
        x1 = F.pad(x1, [diffX // 2, diffX - diffX // 2, diffY // 2, diffY - diffY // 2])
        return self.conv(torch.cat([x2, x1], dim=1))


class UNet(nn.Module):
    def __init__(self, n_channels, n_classes, width=8):
        super().__init__()
        self.n_channels, self.n_classes = n_channels, n_classes
        self.inc = DoubleConv(n_channels, width)
        self.down1 = nn.Sequential(nn.MaxPool2d(2), DoubleConv(width, 2 * width))
        self.down2 = nn.Sequential(nn.MaxPool2d(2), DoubleConv(2 * width, 4 * width))
        self.up1 = Up(4 * width, 2 * width)
        self.up2 = Up(2 * width, width)
        self.outc = nn.Conv2d(width, n_classes, kernel_size=1)

    def forward(self, x):
        x1 = self.inc(x)
        x2 = self.down1(x1)
        x3 = self.down2(x2)
        x = self.up1(x3, x2)
        x = self.up2(x, x1)
        return self.outc(x)


def dice_loss(input, target, epsilon=1e-6):
    inter = 2 * (input * target).sum(dim=(-1, -2))
    sets_sum = input.sum(dim=(-1, -2)) + target.sum(dim=(-1, -2))
    return 1 - ((inter + epsilon) / (sets_sum + epsilon)).mean()


def discs(n, size=30):
    y, x = torch.meshgrid(torch.arange(size), torch.arange(size), indexing='ij')
    centre, radius = torch.randint(6, size - 6, (n, 2)), torch.randint(3, 7, (n,))
    distance = (x - centre[:, :1, None]) ** 2 + (y - centre[:, 1:, None]) ** 2
    masks = (distance < radius[:, None, None] ** 2).float()
    return masks[:, None] + 0.3 * torch.randn(n, 1, size, size), masks


def train_model(model, epochs=2, batch_size=4, learning_rate=1e-3, gradient_clipping=1.0):
    images, masks = discs(32)
    optimizer = optim.RMSprop(model.parameters(), lr=learning_rate, weight_decay=1e-8, momentum=0.9, foreach=True)
    scheduler = optim.lr_scheduler.ReduceLROnPlateau(optimizer, 'max', patience=1)
    criterion = nn.BCEWithLogitsLoss()
    for epoch in range(1, epochs + 1):
        model.train()
        for image, true in zip(images.split(batch_size), masks.split(batch_size)):
            image = image.to(memory_format=torch.channels_last)
            masks_pred = model(image)
            loss = criterion(masks_pred.squeeze(1), true)
            loss += dice_loss(F.sigmoid(masks_pred.squeeze(1)), true)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), gradient_clipping)
            optimizer.step()
            print('loss (batch)', loss.item())
        model.eval()
        with torch.no_grad():
            score = 1 - dice_loss((F.sigmoid(model(images[:8]).squeeze(1)) > 0.5).float(), masks[:8])
        scheduler.step(score)
        logging.info(f'Epoch {epoch}: validation Dice score {score.item()!r}')


if __name__ == '__main__':
    torch.manual_seed(0)
    model = UNet(n_channels=1, n_classes=1)
    model = model.to(memory_format=torch.channels_last)
    logging.info(f'Network: {model.n_channels} input channels, {model.n_classes} output channels')
    train_model(model)
    if os.environ.get('SAVE_WEIGHTS'):
        torch.save(model.state_dict(), os.environ['SAVE_WEIGHTS'])
    sys.exit()
