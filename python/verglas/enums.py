"""Choices of planning, by the names that cuDNN Frontend has for them."""

from enum import Enum


class heur_mode(Enum):
    """Which ranking to use. There is one, so that all of them mean the same."""

    A = 0
    B = 1
    FALLBACK = 2
    OPENSOURCE = 3


class build_plan_policy(Enum):
    """Which plans to compile: the first that compiles, or all of them."""

    HEURISTICS_CHOICE = 0
    ALL = 1
