"""An exact accountant of Gaussian releases for Flower's own strategies with central differential privacy.

Flower's `RdpAccountant` bounds the cost by Rényi divergences. For releases without amplification by sampling, the cost
of all of them together is known exactly (`twinflower.privacy.accountant`): each costs 1 / noise_multiplier^2 in mu^2.
At noise multiplier 3, 30 rounds and delta 1e-4, Flower's accountant says epsilon 8.62, and 7.92 is exact.
"""

from collections.abc import Iterable
from dataclasses import asdict
from math import exp, sqrt
from typing import Any

from flwr.serverapp import GaussianPrivacyEvent, PrivacyConfig, PrivacySpent, SamplingMethod

from twinflower.errors import SettingError, cause, require
from twinflower.privacy import gdp_epsilon
from twinflower.privacy.accountant import check_count, check_not_negative, check_positive, log_delta

_METHOD = "gaussian"


class GaussianAccountant:
    """Flower's protocol `PrivacyAccountant`, exact for every noise multiplier and number of releases.

    config: its sampling method must be no-amplification, the one that Flower's strategies with fixed clipping take; one
    client more or less changes the clipped sum by at most the clipping norm. Amplification by sampling is not Gaussian
    and has no exact formula. Raises SettingError, which is a ValueError, for invalid arguments.
    """

    def __init__(self, config: PrivacyConfig) -> None:
        if config.sampling_method is not SamplingMethod.NO_AMPLIFICATION:
            raise SettingError(
                "GaussianAccountant needs sampling_method no-amplification; got "
                f"{config.sampling_method.value}, for which Flower has RdpAccountant"
            )
        self._config = config
        self._composed: list[tuple[GaussianPrivacyEvent, int]] = []

    @property
    def config(self) -> PrivacyConfig:
        """The configuration that was given."""
        return self._config

    @property
    def num_releases(self) -> int:
        """The number of releases composed so far."""
        return sum(count for _, count in self._composed)

    def compose(self, event: GaussianPrivacyEvent, count: int = 1) -> None:
        """Add `count` equal releases."""
        self._check(event, count)
        self._composed.append((event, count))

    def get_epsilon(self, delta: float) -> float:
        """The smallest epsilon at this delta of all releases together."""
        return gdp_epsilon(_mu(self._composed), delta)

    def get_delta(self, epsilon: float) -> float:
        """The smallest delta at this epsilon of all releases together."""
        check_not_negative("epsilon", epsilon)
        mu = _mu(self._composed)
        return exp(log_delta(mu, epsilon)) if mu else 0.0

    def get_privacy_spent(self, delta: float | None = None) -> PrivacySpent:
        """The privacy spent, at the configuration's target_delta unless another one is given."""
        delta = self._config.target_delta if delta is None else delta
        return PrivacySpent(self.get_epsilon(delta), delta, self.num_releases, _METHOD)

    def would_exceed(
        self, event: GaussianPrivacyEvent, max_epsilon: float | None = None, count: int = 1
    ) -> bool:
        """Whether `count` more releases would exceed max_epsilon, by default that of the configuration."""
        self._check(event, count)
        limit = self._config.max_epsilon if max_epsilon is None else max_epsilon
        if limit is None:
            raise ValueError("max_epsilon is needed, in PrivacyConfig or as an argument")
        check_positive("max_epsilon", limit)
        return gdp_epsilon(_mu([*self._composed, (event, count)]), self._config.target_delta) > limit

    def state_dict(self) -> dict[str, object]:
        """The state in values that JSON can hold."""
        composed = [{"event": asdict(event), "count": count} for event, count in self._composed]
        return {"backend": _METHOD, "config": asdict(self._config), "compositions": composed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state from `state_dict`, which must be of an accountant with the same configuration.

        If the state is invalid, it raises SettingError and this accountant stays as it is.
        """
        backend = state.get("backend")
        if backend != _METHOD:
            raise SettingError(f"the state must be of backend {_METHOD}; got {backend!r}")
        require(state.get("config") == asdict(self._config), "the state is of another PrivacyConfig")
        restored = GaussianAccountant(self._config)
        try:
            for entry in state["compositions"]:
                restored.compose(GaussianPrivacyEvent(**entry["event"]), entry["count"])
        except (KeyError, TypeError, ValueError) as error:
            raise SettingError(f"the state's compositions are invalid: {cause(error)}") from None
        self._composed = restored._composed

    def _check(self, event: GaussianPrivacyEvent, count: int) -> None:
        check_count("count", count)
        if event.population_size != self._config.population_size:
            raise SettingError(
                f"population_size must be that of the configuration, {self._config.population_size}; got "
                f"{event.population_size}"
            )


def _mu(composed: Iterable[tuple[GaussianPrivacyEvent, int]]) -> float:
    """mu of all releases together, 0 for none."""
    return sqrt(sum(count / event.noise_multiplier**2 for event, count in composed))
