"""What changes in time: waves of unknown periods, growth, processes; R's data in raw units."""

import numpy as np

from .entries import codes, columns, entry

PI = float(np.pi)


def _sunspots() -> tuple:
    year, count = columns("datasets", "sunspot.year", "time", "value")
    return year[::3] - year[::3].mean(), count[::3]


@entry("dynamics", _sunspots)
def sunspots(ppl, t, y):
    """A wave through counts of every third year: hardly any ascent leads to its period."""
    period = ppl.sample("period", ppl.Uniform(4.0, 60.0))
    waves = ppl.normals("waves", 2, 100.0)
    base, sigma = ppl.draws(base=ppl.Normal(0.0, 200.0), sigma=ppl.HalfNormal(100.0))
    angle = 2 * PI * t / period
    mean = base + waves[0] * ppl.sin(angle) + waves[1] * ppl.cos(angle)
    ppl.rows(ppl.Normal(mean, sigma), y)


@entry("dynamics", lambda: tuple(columns("datasets", "lynx", "time", "value")))
def lynx_wave(ppl, t, y):
    """A height and a phase, through logarithms of trappings; calendar years."""
    period, height = ppl.draws(period=ppl.Gamma(4.0, 0.3), height=ppl.HalfNormal(3.0))
    phase, base = ppl.draws(phase=ppl.Normal(0.0, 2.0), base=ppl.Normal(0.0, 10.0))
    sigma = ppl.sample("sigma", ppl.HalfNormal(2.0))
    mean = base + height * ppl.cos(2 * PI * (t - 1870.0) / period + phase)
    ppl.rows(ppl.LogNormal(mean, sigma), y)


def _months() -> tuple:
    month, degrees = columns("datasets", "nottem", "time", "value")
    return 12 * (month[:90:2] - month[0]), degrees[:90:2]


@entry("dynamics", _months)
def temperatures(ppl, t, y):
    """Every second month of Nottingham, in degrees Fahrenheit; the year's length is not known."""
    omega = ppl.sample("omega", ppl.Uniform(0.05, 1.5))
    waves = ppl.normals("waves", 2, 30.0)
    base, sigma = ppl.draws(base=ppl.Normal(0.0, 100.0), sigma=ppl.HalfCauchy(10.0))
    mean = base + waves[0] * ppl.sin(omega * t) + waves[1] * ppl.cos(omega * t)
    ppl.rows(ppl.Normal(mean, sigma), y)


def _beats() -> tuple:
    rng = np.random.default_rng(5001)
    t = np.linspace(0, 20, 80)
    return t, 300 * np.sin(2.1 * t) + 200 * np.sin(2.6 * t + 1) + 80 * rng.normal(size=80)


@entry("dynamics", _beats)
def beats(ppl, t, y):
    """Two waves whose frequencies lie near to each other, the second above the first."""
    first, gap = ppl.draws(first=ppl.LogNormal(0.5, 0.7), gap=ppl.Exponential(1.0))
    waves = ppl.normals("waves", 4, 300.0)
    sigma = ppl.sample("sigma", ppl.HalfNormal(200.0))
    one, two = first * t, (first + gap) * t
    mean = waves[0] * ppl.sin(one) + waves[1] * ppl.cos(one)
    mean = mean + waves[2] * ppl.sin(two) + waves[3] * ppl.cos(two)
    ppl.rows(ppl.Normal(mean, sigma), y)


@entry("dynamics", lambda: tuple(columns("datasets", "uspop", "time", "value")))
def population(ppl, t, y):
    """Logistic growth of the United States, in millions; calendar years."""
    capacity, rate = ppl.draws(capacity=ppl.LogNormal(5.0, 1.0), rate=ppl.LogNormal(-3.0, 1.0))
    middle, sigma = ppl.draws(middle=ppl.Normal(1900.0, 100.0), sigma=ppl.HalfNormal(10.0))
    mean = capacity / (1 + ppl.exp(-rate * (t - middle)))
    ppl.rows(ppl.Normal(mean, sigma), y)


def _pines() -> tuple:
    height, age, seed = columns("datasets", "Loblolly", "height", "age", "Seed")
    return height, age, codes(seed)


@entry("dynamics", _pines)
def pines(ppl, y, age, seed):
    """Heights of pines from fourteen seeds, which grow to heights of their own; feet and years."""
    tallest, rate = ppl.draws(tallest=ppl.Normal(100.0, 50.0), rate=ppl.LogNormal(-3.0, 1.0))
    start, tau = ppl.draws(start=ppl.Normal(0.0, 5.0), tau=ppl.HalfNormal(20.0))
    sigma = ppl.sample("sigma", ppl.HalfNormal(5.0))
    with ppl.plate("seeds", 14):
        own = ppl.sample("own", ppl.Normal(0.0, tau))
    mean = (tallest + own[seed]) * (1 - ppl.exp(-rate * (age - start)))
    ppl.rows(ppl.Normal(mean, sigma), y)


@entry("dynamics", lambda: tuple(columns("datasets", "Indometh", "time", "conc")))
def two_rates(ppl, t, y):
    """Two rates of elimination, which can change places."""
    amounts = ppl.sample("amounts", ppl.LogNormal(0.0, 1.0).expand([2]).to_event(1))
    rates = ppl.sample("rates", ppl.LogNormal(0.0, 1.0).expand([2]).to_event(1))
    sigma = ppl.sample("sigma", ppl.HalfNormal(0.5))
    mean = amounts[0] * ppl.exp(-rates[0] * t) + amounts[1] * ppl.exp(-rates[1] * t)
    ppl.rows(ppl.LogNormal(ppl.log(mean), sigma), y)


@entry("processes", lambda: tuple(columns("datasets", "LakeHuron", "time", "value")))
def levels_of_a_lake(ppl, t, y):
    """An autoregression about a line, in feet above the sea and calendar years."""
    start, slope = ppl.draws(start=ppl.Normal(500.0, 200.0), slope=ppl.Normal(0.0, 1.0))
    rho, sigma = ppl.draws(rho=ppl.Uniform(-1.0, 1.0), sigma=ppl.HalfNormal(5.0))
    line = start + slope * (t - 1900.0)
    with ppl.plate("rows", len(y) - 1):
        ppl.sample("y", ppl.Normal(line[1:] + rho * (y - line)[:-1], sigma), obs=y[1:])


def _deaths() -> tuple:
    t, deaths = columns("datasets", "ldeaths", "time", "value")
    return t - t[0], deaths


@entry("processes", _deaths)
def deaths(ppl, t, y):
    """A process that comes back after an unknown period, in deaths a month."""
    base, scale = ppl.draws(base=ppl.Normal(0.0, 5000.0), scale=ppl.HalfNormal(2000.0))
    length, period = ppl.draws(length=ppl.LogNormal(0.0, 1.0), period=ppl.LogNormal(0.0, 1.0))
    sigma = ppl.sample("sigma", ppl.HalfNormal(500.0))
    gaps = t[:, None] - t[None]
    kernel = scale**2 * ppl.exp(-2 * ppl.sin(PI * gaps / period) ** 2 / length**2)
    cov = kernel + (sigma**2 + 1e-4 * scale**2) * ppl.array(_eye(len(y)))
    mean = base + 0 * t
    ppl.sample("y", ppl.MultivariateNormal(mean, covariance_matrix=cov), obs=y)


def _eye(size: int) -> np.ndarray:
    return np.eye(size)


@entry("processes", lambda: tuple(columns("datasets", "Nile", "value")))
def local_level(ppl, y):
    """The river's level walks, a hundred steps of their own."""
    first, tau = ppl.draws(first=ppl.Normal(0.0, 2000.0), tau=ppl.HalfNormal(100.0))
    sigma = ppl.sample("sigma", ppl.HalfNormal(300.0))
    steps = ppl.normals("steps", 99)
    walk = ppl.cumsum(tau * steps, 0)
    ppl.sample("y0", ppl.Normal(first, sigma), obs=y[0])
    with ppl.plate("rows", 99):
        ppl.sample("y", ppl.Normal(first + walk, sigma), obs=y[1:])
