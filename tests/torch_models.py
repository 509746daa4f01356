"""Modules that the tests of PyTorch objectives name in a run's settings: "torch:tests/torch_models.py:cnn"."""

from torch import nn

from twinflower.torch import ModuleObjective


def layers():
    """A small CNN for rows of 64 numbers as images."""
    features = nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.Tanh(), nn.AvgPool2d(2))
    return nn.Sequential(features, nn.Flatten(), nn.Linear(36, 10))


def cnn():
    return ModuleObjective(layers(), row_shape=(1, 8, 8))


def precise():
    """The same in double precision."""
    return ModuleObjective(layers().double(), row_shape=(1, 8, 8))


def plain():
    """A module as it is: softmax regression."""
    return nn.Linear(65, 10, bias=False).double()


def slope():
    """For real labels."""
    return nn.Linear(11, 1).double()


def clipped():
    return ModuleObjective(layers(), row_shape=(1, 8, 8), clip_norm=1.0)


def on_cuda():
    return nn.Linear(65, 10, device="cuda")


def loaded():
    """With the weights of another module."""
    made = nn.Linear(65, 10)
    made.load_state_dict(nn.Linear(64, 10).state_dict())
    return made


def word():
    return "a module"


number = 3
