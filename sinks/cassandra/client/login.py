"""The login of a connection by the name of a function, in the form that the driver asks for it."""

from __future__ import annotations

from typing import Any

from cassandra.auth import AuthProvider, PlainTextAuthenticator
from cassandra.connection import ConnectionException

from tidegate.options.logins import JUST_S, NoLoginError, Provider


class LoginByName(AuthProvider):  # type: ignore[misc]
    """The driver's ``AuthProvider``. It is asked for each connection."""

    def __init__(self, provider: Provider, limit_s: float) -> None:
        self._provider, self._limit_s = provider, limit_s

    def new_authenticator(self, host: Any) -> Any:
        """Return user and token, as new as they can be had.

        Raises: ConnectionException: there is no login now. ConfigError: the function does not fit.
        """
        try:
            login = self._provider.get(self._limit_s, reuse_s=JUST_S)
        except NoLoginError as error:
            raise ConnectionException(str(error), host) from None
        return PlainTextAuthenticator(login.user, login.token)
