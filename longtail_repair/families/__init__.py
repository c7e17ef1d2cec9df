"""The families of packages: what tasks are drawn from. TRAIN is trained on; HELDOUT never is."""

from longtail_repair.families import held, money, numbers, sequences, structures, texts, worlds
from longtail_repair.families.family import Family, Template, parse_family

TRAIN: tuple[Family, ...] = tuple(
    parse_family(text) for room in (money, numbers, sequences, texts, worlds, structures) for text in room.FAMILIES
)
HELDOUT: tuple[Family, ...] = tuple(parse_family(text) for text in held.FAMILIES)

__all__ = ["HELDOUT", "TRAIN", "Family", "Template", "parse_family"]
