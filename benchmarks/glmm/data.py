"""Data of the hierarchical models: small sets that stand here, and designs that are read.

The data folder, ``--data-dir`` of the scripts, holds ``glmm/designs/*.npz`` (``y``, ``X``, ``Z``,
``group``), ``misc/radon_minnesota.csv`` and ``logistic/diabetes130.csv.gz``.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

#: Gelman et al., Bayesian Data Analysis, table 5.2.
SCHOOLS = (
    np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0]),
    np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0]),
)

#: Crowder (1978), as in the BUGS examples: germinated seeds, seeds, and the 2 x 2 design.
SEEDS = np.array(
    [
        (10, 39, 0, 0), (23, 62, 0, 0), (23, 81, 0, 0), (26, 51, 0, 0), (17, 39, 0, 0),
        (5, 6, 0, 1), (53, 74, 0, 1), (55, 72, 0, 1), (32, 51, 0, 1), (46, 79, 0, 1),
        (10, 13, 0, 1), (8, 16, 1, 0), (10, 30, 1, 0), (8, 28, 1, 0), (23, 45, 1, 0),
        (0, 4, 1, 0), (3, 12, 1, 1), (22, 41, 1, 1), (15, 30, 1, 1), (32, 51, 1, 1),
        (3, 7, 1, 1),
    ],
    float,
)  # fmt: skip


#: Gelfand et al. (1990), as in the BUGS examples: grams of 30 rats at these days.
RATS_DAYS = np.array([8.0, 15.0, 22.0, 29.0, 36.0])
RATS = np.array(
    [
        (151, 199, 246, 283, 320), (145, 199, 249, 293, 354), (147, 214, 263, 312, 328),
        (155, 200, 237, 272, 297), (135, 188, 230, 280, 323), (159, 210, 252, 298, 331),
        (141, 189, 231, 275, 305), (159, 201, 248, 297, 338), (177, 236, 285, 350, 376),
        (134, 182, 220, 260, 296), (160, 208, 261, 313, 352), (143, 188, 220, 273, 314),
        (154, 200, 244, 289, 325), (171, 221, 270, 326, 358), (163, 216, 242, 281, 312),
        (160, 207, 248, 288, 324), (142, 187, 234, 280, 316), (156, 203, 243, 283, 317),
        (157, 212, 259, 307, 336), (152, 203, 246, 286, 321), (154, 205, 253, 298, 334),
        (139, 190, 225, 267, 302), (146, 191, 229, 272, 302), (157, 211, 250, 285, 323),
        (132, 185, 237, 286, 331), (160, 207, 257, 303, 345), (169, 216, 261, 295, 333),
        (157, 205, 248, 289, 316), (137, 180, 219, 258, 291), (153, 200, 244, 286, 324),
    ],
    float,
)  # fmt: skip


class Design(NamedTuple):
    """A generalised linear mixed model ``g(E[y]) = X beta + Z theta_group``."""

    y: np.ndarray  #: responses, shape ``(N,)``
    X: np.ndarray  #: of the fixed effects, shape ``(N, p)``
    Z: np.ndarray  #: of the random effects, shape ``(N, r)``
    group: np.ndarray  #: of each row, from 0 on, in order, shape ``(N,)``

    @property
    def num_groups(self) -> int:
        """``n``."""
        return int(self.group.max()) + 1

    @property
    def num_globals(self) -> int:
        """Fixed effects, and the entries of the Cholesky factor of the random effects'."""
        r = self.Z.shape[1]
        return self.X.shape[1] + r * (r + 1) // 2

    def papers_constant(self, is_count: bool) -> float:
        """What Tan's bounds leave out: ``p log 10`` of the globals' prior, and counts' ``log y!``.

        :param is_count: whether the likelihood is Poisson's.
        """
        constant = self.num_globals * math.log(10.0)
        return constant + is_count * sum(math.lgamma(1.0 + count) for count in self.y)

    def without_effects(self, is_count: bool) -> np.ndarray:
        """Fixed effects of the model without random ones, by Newton's method; prior N(0, 100).

        :param is_count: whether the likelihood is Poisson's.
        """
        prior, eta = 0.01, np.log(self.y + 0.5) if is_count else np.zeros(len(self.y))
        for _ in range(25):
            mean = np.exp(eta) if is_count else 1 / (1 + np.exp(-eta))
            weights = mean if is_count else mean * (1 - mean)
            precision = (self.X.T * weights) @ self.X + prior * np.eye(self.X.shape[1])
            working = weights * eta + self.y - mean
            beta = np.linalg.solve(precision, self.X.T @ working)
            eta = self.X @ beta
        return beta


def load(name: str, directory: Path) -> Design:
    """A design by its name.

    :param name: ``"diabetes"``, or that of a file in ``glmm/designs``.
    :raises FileNotFoundError: if its file is not there.
    """
    if name == "diabetes":
        path = directory / "logistic" / "diabetes130.csv.gz"
        return diabetes(pd.read_csv(path, keep_default_na=False, na_values=[""], low_memory=False))
    with np.load(directory / "glmm" / "designs" / f"{name}.npz") as arrays:
        return Design(*(arrays[key] for key in Design._fields))


def radon(directory: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Log radon, whether on the first floor, and the county of each home."""
    frame = pd.read_csv(directory / "misc" / "radon_minnesota.csv")
    county = pd.factorize(frame.county)[0]
    return frame.log_radon.to_numpy(), frame.basement.to_numpy(float), county


# -- the Diabetes data ----------------------------------------------------------------

#: Of ``discharge_disposition_id``: expired, or to a hospice. Such patients do not come again.
TO_DEATH_OR_HOSPICE = (11, 13, 14, 19, 20, 21)
#: Of ``discharge_disposition_id``: to home.
TO_HOME = 1
#: Of ``admission_source_id``.
EMERGENCY, REFERRALS = 7, (1, 2, 3)
#: Ranges of ICD-9 codes of the primary diagnosis, and a symptom that belongs to each (Strack et
#: al., table 2); whatever else there is, is "other".
DIAGNOSES = {
    "circulatory": (390, 459, 785),
    "respiratory": (460, 519, 786),
    "digestive": (520, 579, 787),
    "genitourinary": (580, 629, 788),
    "neoplasms": (140, 239, None),
    "musculoskeletal": (710, 739, None),
    "injury": (800, 999, None),
}


def diabetes(frame: pd.DataFrame) -> Design:
    """Readmissions within 30 days, of patients with at least two records (Tan, section 8.5).

    The paper names the terms of its model, and for their groupings Strack et al. (2014, *Impact
    of HbA1c measurement on hospital readmission rates*, BioMed Research International): admission
    source as a main term, and the interactions of discharge and time in hospital, discharge and
    race, time and diagnosis, HbA1c and diagnosis. It is our reading that records that end in death
    or a hospice are dropped first (that gives the paper's 16,341 patients, and 45,694 records),
    that interactions come with their main terms, that time is standardised, and which level of a
    factor is its base.

    :param frame: the columns of UCI's ``diabetic_data.csv``, a record a row, where ``None`` is a
        level of ``A1Cresult`` and missing values are NaN.
    :return: the base is a patient of average time at home, Caucasian, with another admission
        source, diabetes for diagnosis, and HbA1c not measured; a random intercept by patient.
    """
    frame = frame[~frame.discharge_disposition_id.isin(TO_DEATH_OR_HOSPICE)]
    records = frame.groupby("patient_nbr").patient_nbr.transform("size")
    frame = frame[records >= 2]
    source = frame.admission_source_id
    sources = [source == EMERGENCY, source.isin(REFERRALS)]
    admission = np.select(sources, ["emergency", "referral"], "other")
    elsewhere = (frame.discharge_disposition_id != TO_HOME).to_numpy(float)[:, None]
    stay = frame.time_in_hospital.to_numpy(float)[:, None]
    stay = (stay - stay.mean()) / stay.std()
    known = {"Caucasian": "Caucasian", "AfricanAmerican": "African American"}
    race = frame.race.map(known).fillna("other").where(frame.race.notna(), "missing")
    races = _dummies(race, "Caucasian")
    diagnosis = _dummies(frame.diag_1.map(diagnosis_group), "diabetes")
    hba1c = _dummies(_hba1c(frame.A1Cresult, frame.change), "not measured")
    of_both = elsewhere * stay, elsewhere * races, stay * diagnosis, _products(hba1c, diagnosis)
    columns = [
        *(np.ones_like(stay), _dummies(admission, "other")),
        *(elsewhere, stay, races, diagnosis, hba1c),
        *of_both,
    ]
    patient = pd.factorize(frame.patient_nbr)[0]
    order = np.argsort(patient, kind="stable")
    X = np.concatenate(columns, 1)[order]
    y = (frame.readmitted == "<30").to_numpy(float)[order]
    return Design(y, X, np.ones((len(y), 1)), patient[order])


def diagnosis_group(code: object) -> str:
    """The group of an ICD-9 code, a text such as ``250.83`` or ``V57``; of none, "other"."""
    if not isinstance(code, str) or code[0] in "EV":
        return "other"
    whole = int(float(code))
    if whole == 250:
        return "diabetes"
    for name, (first, last, symptom) in DIAGNOSES.items():
        if first <= whole <= last or whole == symptom:
            return name
    return "other"


def _hba1c(result: pd.Series, change: pd.Series) -> np.ndarray:
    """Not measured, normal, or above 8%, with or without a change of the diabetic medication.

    Strack et al. do not say where a result between 7 and 8% belongs: here it counts as normal.
    """
    is_high, is_changed = result == ">8", change == "Ch"
    cases = [result.isin(("Norm", ">7")), is_high & is_changed, is_high]
    return np.select(cases, ["normal", "high, changed", "high"], "not measured")


def _dummies(values: object, base: str) -> np.ndarray:
    """A column for each level but one, in the order of their names."""
    values = np.asarray(values, str)
    levels = [level for level in np.unique(values) if level != base]
    return np.stack([(values == level).astype(float) for level in levels], 1)


def _products(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Of each column with each."""
    return (left[:, :, None] * right[:, None, :]).reshape(len(left), -1)
