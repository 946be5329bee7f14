"""Networks to train: plain modules, each a `body` for the features and a linear `classifier`; and a generator."""

from __future__ import annotations

from fedloom.models.cosine import CosineHead, with_cosines
from fedloom.models.dense_cnns import DenseCNN, DenseMnistCNN
from fedloom.models.generators import DenseGenerator
from fedloom.models.ktpfl_networks import AlexNet, ShuffleNetV2
from fedloom.models.networks import (
    APFLCNN,
    MLP,
    FeatureClassifier,
    FedNTDCNN,
    HypersphereCNN,
    LeNet,
    LinearSVM,
    LogisticRegression,
    PFedSDCifar100CNN,
    PFedSDFashionCNN,
    SmallConvNet,
    UNet,
)
from fedloom.models.registry import MODELS, Reads, build
from fedloom.models.resnet import ResNet, ResNet10, ResNet18, ResNet56
from fedloom.models.sequences import CategoryMLP, CausalTransformer, TextCNN, TextLSTM
from fedloom.models.torchvision_networks import with_group_norm
from fedloom.models.wide_resnet import WideResNet

__all__ = [
    "APFLCNN",
    "MLP",
    "MODELS",
    "AlexNet",
    "CategoryMLP",
    "CausalTransformer",
    "CosineHead",
    "DenseCNN",
    "DenseGenerator",
    "DenseMnistCNN",
    "FeatureClassifier",
    "FedNTDCNN",
    "HypersphereCNN",
    "LeNet",
    "LinearSVM",
    "LogisticRegression",
    "PFedSDCifar100CNN",
    "PFedSDFashionCNN",
    "Reads",
    "ResNet",
    "ResNet10",
    "ResNet18",
    "ResNet56",
    "ShuffleNetV2",
    "SmallConvNet",
    "TextCNN",
    "TextLSTM",
    "UNet",
    "WideResNet",
    "build",
    "with_cosines",
    "with_group_norm",
]
