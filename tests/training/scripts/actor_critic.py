import argparse
import math
import os
from collections import namedtuple
from itertools import count

import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from torch.distributions import Categorical

parser = argparse.ArgumentParser(description='PyTorch actor-critic example')
parser.add_argument('--gamma', type=float, default=0.99, metavar='G',
                    help='discount factor (default: 0.99)')
parser.add_argument('--seed', type=int, default=543, metavar='N',
                    help='random seed (default: 543)')
parser.add_argument('--episodes', type=int, default=9)
args = parser.parse_args()

torch.manual_seed(args.seed)
SavedAction = namedtuple('SavedAction', ['log_prob', 'value'])


class CartPole:
    """The pole on a cart, as in Barto, Sutton and Anderson (1983)."""

    def reset(self):
        self.state = torch.rand(4).mul(0.1).sub(0.05).tolist()
        return self.state

    def step(self, action):
        x, x_dot, theta, theta_dot = self.state
        force = 10.0 if action == 1 else -10.0
        temp = (force + 0.05 * theta_dot ** 2 * math.sin(theta)) / 1.1
        thetaacc = (9.8 * math.sin(theta) - math.cos(theta) * temp) / (
            0.5 * (4.0 / 3.0 - 0.1 * math.cos(theta) ** 2 / 1.1))
        xacc = temp - 0.05 * thetaacc * math.cos(theta) / 1.1
        self.state = [x + 0.02 * x_dot, x_dot + 0.02 * xacc, theta + 0.02 * theta_dot, theta_dot + 0.02 * thetaacc]
        done = abs(self.state[0]) > 2.4 or abs(self.state[2]) > 12 * 2 * math.pi / 360
        return self.state, 1.0, done


class Policy(nn.Module):
    """
    implements both actor and critic in one model
    """
    def __init__(self):
        super(Policy, self).__init__()
        self.affine1 = nn.Linear(4, 128)
        # actor's layer
        self.action_head = nn.Linear(128, 2)
        # critic's layer
        self.value_head = nn.Linear(128, 1)
        # action & reward buffer
        self.saved_actions = []
        self.rewards = []

    def forward(self, x):
        x = F.relu(self.affine1(x))
        action_prob = F.softmax(self.action_head(x), dim=-1)
        state_values = self.value_head(x)
        return action_prob, state_values


env = CartPole()
model = Policy()
optimizer = optim.Adam(model.parameters(), lr=3e-2)
eps = 1.1920929e-07


def select_action(state):
    probs, state_value = model(torch.tensor(state))
    m = Categorical(probs)
    action = m.sample()
    model.saved_actions.append(SavedAction(m.log_prob(action), state_value))
    return action.item()


def finish_episode():
    """
    Training code. Calculates actor and critic loss and performs backprop.
    """
    R = 0
    policy_losses = []  # list to save actor (policy) loss
    value_losses = []  # list to save critic (value) loss
    returns = []  # list to save the true values
    for r in model.rewards[::-1]:
        R = r + args.gamma * R
        returns.insert(0, R)

    returns = torch.tensor(returns)
    returns = (returns - returns.mean()) / (returns.std() + eps)
    for (log_prob, value), R in zip(model.saved_actions, returns):
        advantage = R - value.item()
        policy_losses.append(-log_prob * advantage)
        value_losses.append(F.smooth_l1_loss(value, torch.tensor([R])))

    optimizer.zero_grad()
    loss = torch.stack(policy_losses).sum() + torch.stack(value_losses).sum()
    loss.backward()
    optimizer.step()

    # reset rewards and action buffer
    del model.rewards[:]
    del model.saved_actions[:]
    return loss.item()


running_reward = 10
for i_episode in count(1):
    state = env.reset()
    ep_reward = 0
    for t in range(1, 200):
        state, reward, done = env.step(select_action(state))
        model.rewards.append(reward)
        ep_reward += reward
        if done:
            break
    running_reward = 0.05 * ep_reward + (1 - 0.05) * running_reward
    loss = finish_episode()
    print('Episode {}\tLast reward: {:.2f}\tAverage reward: {:.2f}\tLoss: {!r}'.format(
          i_episode, ep_reward, running_reward, loss))
    if i_episode >= args.episodes:
        break

if 'SAVE_WEIGHTS' in os.environ:
    torch.save(model.state_dict(), os.environ['SAVE_WEIGHTS'])
