"""Logins of managed servers, for functions of the form that ``tidegate.options.logins`` takes.

Each calls the vendor's library, which has to be installed on each machine. ``msk_iam`` and ``entra`` without
arguments are such functions themselves: ``credential_provider="tidegate.options.cloud_logins:msk_iam"``.
"""

from __future__ import annotations

import functools
import importlib
import os
import time
from typing import Any
from urllib.parse import urlencode

from tidegate.errors import ConfigError

ELASTICACHE_S = 900
"""The time of a token of ElastiCache, in seconds: the longest that it takes."""
REDIS_SCOPE = "https://redis.azure.com/.default"

LoginTuple = tuple[str, str, float | None]


def msk_iam(region: str = "") -> LoginTuple:
    """Return the login of an MSK cluster by IAM (``aws-msk-iam-sasl-signer-python``), for OAUTHBEARER.

    ``region``: by default that of ``AWS_REGION``.
    """
    signer: Any = importlib.import_module("aws_msk_iam_sasl_signer")
    region = _region(region)
    token, expires_ms = signer.MSKAuthTokenProvider.generate_auth_token(region)
    return "", token, expires_ms / 1000


def elasticache_iam(user: str, cache: str, region: str = "", *, serverless: bool = False) -> LoginTuple:
    """Return the login of a user of ElastiCache by IAM: a request signed by ``botocore``.

    ``cache``: the name of the replication group or the serverless cache, in small letters.
    """
    auth: Any = importlib.import_module("botocore.auth")
    requests: Any = importlib.import_module("botocore.awsrequest")
    session: Any = importlib.import_module("botocore.session")
    query = {"Action": "connect", "User": user} | ({"ResourceType": "ServerlessCache"} if serverless else {})
    request = requests.AWSRequest(method="GET", url=f"http://{cache}/?{urlencode(query)}")
    credentials = session.Session().get_credentials()
    if credentials is None:
        raise ConfigError(
            "elasticache_iam finds no credentials of AWS: give this process a role or the usual variables"
        )
    expires_at = time.time() + ELASTICACHE_S
    frozen = credentials.get_frozen_credentials()
    auth.SigV4QueryAuth(frozen, "elasticache", _region(region), expires=ELASTICACHE_S).add_auth(request)
    return user, request.url.removeprefix("http://"), expires_at


def entra(user: str = "", scope: str = REDIS_SCOPE) -> LoginTuple:
    """Return the login of Azure by Entra ID (``azure-identity``), with its default credential.

    ``user``: for Redis the object id of the identity, by default that of ``AZURE_CLIENT_ID``. ``scope``: for
    Event Hubs ``https://NAMESPACE.servicebus.windows.net/.default``, by OAUTHBEARER.
    """
    token = _azure().get_token(scope)
    return user or os.environ.get("AZURE_CLIENT_ID", ""), token.token, float(token.expires_on)


def astra(token: str) -> LoginTuple:
    """Return the login of Astra by an application token, ``AstraCS:...``."""
    return "token", token, None


def _region(region: str) -> str:
    resolved = region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if not resolved:
        raise ConfigError("a login of AWS needs the region: give it, or set AWS_REGION")
    return resolved


@functools.cache
def _azure() -> Any:
    """Return one credential, which keeps its tokens."""
    return importlib.import_module("azure.identity").DefaultAzureCredential()
