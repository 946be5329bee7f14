"""Tasks: what is learnt, by which loss, and by which measures models are compared."""

from fedloom.tasks.classification import Binary, Classification, ClassTask
from fedloom.tasks.margins import SVM, Hinge
from fedloom.tasks.multi_label import MultiLabel
from fedloom.tasks.next_token import NextToken
from fedloom.tasks.regression import Regression

__all__ = ["SVM", "Binary", "ClassTask", "Classification", "Hinge", "MultiLabel", "NextToken", "Regression"]
