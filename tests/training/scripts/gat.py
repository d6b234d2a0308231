import argparse
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.optim import Adam


class GraphAttentionLayer(nn.Module):
    """https://arxiv.org/abs/1710.10903, without sparse operations."""

    def __init__(self, in_features, out_features, n_heads, concat=False, dropout=0.4, leaky_relu_slope=0.2):
        super(GraphAttentionLayer, self).__init__()
        self.n_heads, self.concat, self.dropout = n_heads, concat, dropout
        self.n_hidden = out_features // n_heads if concat else out_features
        self.W = nn.Parameter(torch.empty(size=(in_features, self.n_hidden * n_heads)))
        self.a = nn.Parameter(torch.empty(size=(n_heads, 2 * self.n_hidden, 1)))
        self.leakyrelu = nn.LeakyReLU(leaky_relu_slope)
        self.softmax = nn.Softmax(dim=1)
        nn.init.xavier_normal_(self.W)
        nn.init.xavier_normal_(self.a)

    def _get_attention_scores(self, h_transformed):
        source_scores = torch.matmul(h_transformed, self.a[:, :self.n_hidden, :])
        target_scores = torch.matmul(h_transformed, self.a[:, self.n_hidden:, :])
        # broadcast add: (n_heads, n_nodes, 1) + (n_heads, 1, n_nodes)
        return self.leakyrelu(source_scores + target_scores.mT)

    def forward(self, h, adj_mat):
        n_nodes = h.shape[0]
        h_transformed = torch.mm(h, self.W)
        h_transformed = F.dropout(h_transformed, self.dropout, training=self.training)
        h_transformed = h_transformed.view(n_nodes, self.n_heads, self.n_hidden).permute(1, 0, 2)
        e = self._get_attention_scores(h_transformed)
        connectivity_mask = -9e16 * torch.ones_like(e)
        e = torch.where(adj_mat > 0, e, connectivity_mask)
        attention = F.softmax(e, dim=-1)
        attention = F.dropout(attention, self.dropout, training=self.training)
        h_prime = torch.matmul(attention, h_transformed)
        if self.concat:
            return h_prime.permute(1, 0, 2).contiguous().view(n_nodes, self.n_heads * self.n_hidden)
        return h_prime.mean(dim=0)


class GAT(nn.Module):
    def __init__(self, in_features, n_hidden, n_heads, num_classes, dropout=0.4):
        super(GAT, self).__init__()
        self.gat1 = GraphAttentionLayer(in_features, n_hidden, n_heads, concat=True, dropout=dropout)
        self.elu = nn.ELU()
        self.gat2 = GraphAttentionLayer(n_hidden, num_classes, 1, concat=False, dropout=dropout)

    def forward(self, input_tensor, adj_mat):
        x = self.gat1(input_tensor, adj_mat)
        x = self.elu(x)
        x = self.gat2(x, adj_mat)
        return F.log_softmax(x, dim=1)


def community_graph(nodes=120, classes=4):
    labels = torch.arange(nodes) % classes
    together = (labels[:, None] == labels[None]).float()
    edges = torch.rand(nodes, nodes) < 0.2 * together + 0.01
    adj = ((edges | edges.T).float() + torch.eye(nodes)).clamp(max=1)
    features = F.one_hot(labels, classes).float() + torch.randn(nodes, classes)
    features = torch.cat([features, torch.randn(nodes, 12)], 1)
    return features, adj, labels


def train_iter(epoch, model, optimizer, criterion, input, target, mask_train, mask_val, print_every=5):
    model.train()
    optimizer.zero_grad()
    output = model(*input)
    loss = criterion(output[mask_train], target[mask_train])
    loss.backward()
    optimizer.step()
    loss_train, acc_train = test(model, criterion, input, target, mask_train)
    loss_val, acc_val = test(model, criterion, input, target, mask_val)
    if epoch % print_every == 0:
        print(f'Epoch: {epoch:04d} loss_train: {loss_train!r} acc_train: {acc_train!r} '
              f'loss_val: {loss_val!r} acc_val: {acc_val!r}')


def test(model, criterion, input, target, mask):
    model.eval()
    with torch.no_grad():
        output = model(*input)
        output, target = output[mask], target[mask]
        loss = criterion(output, target)
        acc = (output.argmax(dim=1) == target).float().sum() / len(target)
    return loss.item(), acc.item()


if __name__ == '__main__':
    parser = argparse.ArgumentParser(description='PyTorch Graph Attention Network')
    parser.add_argument('--epochs', type=int, default=12)
    parser.add_argument('--lr', type=float, default=0.005)
    parser.add_argument('--l2', type=float, default=5e-4)
    parser.add_argument('--seed', type=int, default=13)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    features, adj_mat, labels = community_graph()
    gat_net = GAT(in_features=features.shape[1], n_hidden=32, n_heads=4, num_classes=4)
    optimizer = Adam(gat_net.parameters(), lr=args.lr, weight_decay=args.l2)
    idx = torch.randperm(len(labels))
    for epoch in range(args.epochs):
        train_iter(epoch + 1, gat_net, optimizer, nn.NLLLoss(), (features, adj_mat), labels, idx[:60], idx[60:90])
    print('test', *test(gat_net, nn.NLLLoss(), (features, adj_mat), labels, idx[90:]))
    if 'SAVE_WEIGHTS' in os.environ:
        torch.save(gat_net.state_dict(), os.environ['SAVE_WEIGHTS'])
