"""The verdict of a run's certificate, in words."""

from collections.abc import Iterator

from lengthwise.evaluation.forecast.assumptions import REACHED
from lengthwise.evaluation.forecast.certificate import RunCertificate
from lengthwise.evaluation.forecast.prediction import Forecast


def run_verdict(certificate: RunCertificate) -> str:
    """Return what the certificate says about longer lengths, in a few sentences."""
    if certificate.refused is not None:
        return f"Nothing is predicted: {certificate.refused}."
    return " ".join(_sentences(certificate))


def _sentences(certificate: RunCertificate) -> Iterator[str]:
    horizon, longest = certificate.horizon, certificate.trained[1]
    assert horizon is not None
    if horizon.tokens > longest:
        yield f"At least {REACHED} of the answer tokens are predicted to be right up to length {horizon.tokens}."
    else:
        yield f"No length beyond the trained {longest} is predicted to have {REACHED} of its answer tokens right."
    yield f"The limit: {horizon.limited_by}."
    if any(each.answers > 1 for each in certificate.forecasts):
        yield _of_whole_answers(certificate.forecasts, horizon.exact, longest)
    if certificate.beyond:
        lengths = ", ".join(map(str, certificate.beyond))
        yield f"Nothing is predicted at {lengths}: run lengthwise evaluate there."


def _of_whole_answers(forecasts: tuple[Forecast, ...], exact: int, longest: int) -> str:
    """Exact match is what evaluate reports first, and follows only loosely from a share of right tokens."""
    told = f"Exact match of {REACHED} is predicted up to length {exact}" if exact > longest else ""
    open_at = [each for each in forecasts if each.exact_low < REACHED <= each.exact_high]
    if not open_at:
        return f"{told}." if told else f"Exact match is predicted to be below {REACHED} at every tested length."
    first = open_at[0]
    told = f"{told}; whether" if told else "Whether"
    return (
        f"{told} whole examples are exact at {first.length} is open ({first.exact_low:.2f} to {first.exact_high:.2f}): "
        f"all of their {first.answers} answer tokens have to be right, and {first.low:.2f} to {first.high:.2f} of "
        "single ones are; run lengthwise evaluate."
    )
