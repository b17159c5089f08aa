"""The 173 female horseshoe crabs: satellites by colour and width of the shell.

J. Brockmann (1996), as printed by Agresti (2018, *An Introduction to Categorical Data
Analysis*, Table 3.2): of each crab the width in cm and how many satellites (males that gather
around her) she had.
"""

from __future__ import annotations

import numpy as np

#: ``width:satellites`` of every crab, by colour.
TABLE = {
    "light medium": """
        25:3 26.1:5 30.2:2 26.5:0 29.3:4 27.7:6 24.5:6 28:0 26:9 27.1:8 25.8:0 27.4:6
    """,
    "medium": """
        28.3:8 29:1 24.9:0 25.7:8 27.5:6 30.3:3 22.9:4 30:8 26.2:3 25.4:6 25.4:4 24:0 28.7:0
        24.5:1 26.5:4 25:2 25.4:0 24.9:6 30.5:3 30:9 22.9:0 23.9:2 26:3 25.8:0 23.8:0 26:14 22.5:1
        28.7:3 26.7:5 28.2:6 25.7:5 27.8:0 29:10 28.5:0 29.7:5 27.5:1 26.3:1 27.8:3 31.9:2 25:5
        27.9:7 25:6 31.7:4 27.6:4 28.2:8 25.8:0 27.4:5 26.8:5 27.9:6 30:5 25:4 27.7:5 28.3:15 26:5
        26.2:0 22.9:0 25.1:5 26.8:0 29:1 24.7:4 29:1 27:6 24.2:2 25.1:0 24.9:0 27.5:6 24.3:0
        29.5:4 26.2:0 24.7:4 23.7:0 28.2:11 25.2:1 23.2:4 25.7:0 26.8:0 28.5:3 27.2:3 28:1 26.5:0
        25.8:0 28.2:1 25.2:1 25.3:2 27.4:3 26.2:2 28:4 28.4:5 33.5:7 25.8:0 23.1:0 28.3:0 26.5:4
        26.5:7 24.5:0
    """,
    "dark medium": """
        26:4 25.6:0 28.9:4 26.2:3 24.5:5 26.5:1 27.3:1 22:0 27.2:5 29:4 22.5:0 24.3:0 27:3 25.6:7
        24.2:0 25.7:0 23.1:0 23.1:0 24.5:1 26.2:0 28.4:3 29:3 23.8:0 24.1:0 24.7:0 26.7:2 23:1
        25.9:4 28.5:1 27:6 29.8:4 26.2:2 24.8:0 27.5:3 28.5:9 27.1:0 23:0 26:3 24.5:0 25.5:0
        25.7:0 23.8:6 24:10 26.1:3
    """,
    "dark": """
        21:0 26.2:0 27.5:0 27:3 25.8:10 25:8 24.7:0 23.4:0 24.7:5 24.5:0 23.7:0 25.5:0 25.5:0
        23.7:0 22.5:4 25.7:0 27:0 25.8:3 27.5:0 23.5:0 26.7:0 29.3:12
    """,
}


def crabs() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """``(colour, width, satellites)``, each of shape ``(173,)``; colours count from 0."""
    colour, width, satellites = [], [], []
    for code, entries in enumerate(TABLE.values()):
        for entry in entries.split():
            colour.append(code)
            width.append(float(entry.split(":")[0]))
            satellites.append(float(entry.split(":")[1]))
    return np.array(colour), np.array(width), np.array(satellites)


def design(model: str) -> np.ndarray:
    """The design matrix of ``"1"``, ``"Width"`` or ``"Color + Width"``, with an intercept.

    The width is standardised; of the four colours the first is the reference.
    """
    colour, width, _ = crabs()
    columns = [np.ones_like(width)]
    if "Color" in model:
        columns += [(colour == code).astype(float) for code in (1, 2, 3)]
    if "Width" in model:
        columns.append((width - width.mean()) / width.std(ddof=1))
    return np.stack(columns, 1)
