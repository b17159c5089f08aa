"""Which files of the checkouts are run, and how."""

from __future__ import annotations

FOLDERS = {
    "pyro": ("examples", "tutorial/source"),
    "numpyro": ("examples", "notebooks/source"),
}

#: Command lines besides the bare one: models that only an option reaches, and sizes for a test.
OPTIONS = {
    "numpyro/annotation": [f"--model {name}" for name in ("mn", "ds", "mace", "hds", "id", "lre")],
    "numpyro/ar2": ["", "--unroll-loop"],
    "numpyro/gaussian_shells": ["", "--enum"],
    "numpyro/hmcecs": ["--dataset mock --num_datapoints 2000"],
    "numpyro/hmm": ["", "--unroll-loop --num-unsupervised 20 --num-supervised 10"],
    "numpyro/hmm_enum": ["--num-sequences 4 -d 3 -t 8"],
    "pyro/hmm": ["-n 1 -b 3 -d 3 -t 8"],
    "pyro/contrib/funsor/hmm": ["-n 1 -b 3 -d 3 -t 8"],
    "pyro/capture_recapture/cjs": ["-m 4"],
    "pyro/lda": ["-d 20 -w 30 -wd 8 -b 10"],
    "pyro/mixed_hmm/experiment": [
        f"-g {g} -i {i}" for g in ("none", "continuous") for i in ("none", "continuous")
    ],
    "pyro/sparse_regression": ["--num-data 40 --num-dimensions 12"],
    "pyro/sir_hmc": ["-p 100 -d 8", "-p 100 -d 8 --enum", "-p 100 -d 8 --sequential"],
    "pyro/contrib/epidemiology/sir": ["-p 1000 -d 20 -R0 3", "-p 1000 -d 20 -R0 3 --svi"],
    "pyro/scanvi/scanvi": ["--dataset mock"],
    "pyro/svi_horovod": ["--no-horovod --size 200"],
    "pyro/svi_torch": ["--size 200"],
    "pyro/contrib/mue/FactorMuE": ["--test --small"],
    "pyro/contrib/mue/ProfileHMM": ["--test --small"],
    "pyro/contrib/epidemiology/regional": ["-p 1000 -d 10 -r 3", "-p 1000 -d 10 -r 3 --svi"],
}

#: What the examples import, and what takes long to.
PRELOADED = {
    "pyro": ("pyro.contrib.funsor", "pandas"),
    "numpyro": ("numpyro.contrib.funsor", "numpyro.examples.datasets", "pandas"),
}

#: Files with nothing to fit, and why.
LEFT_OUT = {
    "no inference": (
        *(
            "einsum",
            "datasets",
            "conf",
            "cleannb",
            "model_rendering",
            "__init__",
            "eight_schools/data",
        ),
        *("tensor_shapes", "air/modules", "air/viz", "air/air", "cvae/baseline", "cvae/mnist"),
        *("cvae/cvae", "cvae/util", "mixed_hmm/model", "mixed_hmm/seal_data", "vae/utils"),
        *("gp_bayes_opt", "cvae-flax/data", "cvae-flax/models", "cvae-flax/train"),
        *("tutorial/source/prior_predictive", "tutorial/source/effect_handlers"),
        *("intro_part_i$", "tutorial/source/enumeration", "elections", "svi_part_ii$"),
        *("svi_part_iv", "tutorial/source/(cvae|ss-vae|scanvi)", "source/index"),
    ),
    "loops of its own, without Pyro's inference": (
        *("contrib_funsor_intro", "custom_objectives", "normalizing_flows_intro"),
        "contrib/timeseries/gp_models",
    ),
    "discrete latents only": ("RSA-", "rsa/", "search_inference"),
    "discrete latents decide which others there are, and are not enumerated": ("air",),
    "a PPL of its own": ("minipyro",),
    "SMC": ("smcfilter",),
    "several machines or another trainer": ("svi_lightning",),
    "a GPU": ("vae_flow_prior",),
    "a package that is not installed": ("gpjax", "cvae/main"),
}
