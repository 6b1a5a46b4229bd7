"""The description of a floor that no release writes. Pure."""

from __future__ import annotations


def floor_found(floor: object, visible: int) -> str:
    """Describe a floor above the horizon, with a safe next step."""
    if isinstance(floor, int) and floor <= visible:
        return (
            f"floor {floor}: readers are refused below it; their newer versions are whole, and a retirement"
            " that reaches it ends this"
        )
    return (
        f"floor {floor!r:.60}: readers are refused at every version up to it; restore the store from a copy,"
        " or fill a new one from another store (`tidegate store add NAME=URL`)"
    )
