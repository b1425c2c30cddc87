"""The ASGI application: the API, the page, health checks and metrics."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Final

import uvicorn
from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse, StreamingResponse
from fastapi.staticfiles import StaticFiles
from prometheus_client import CollectorRegistry, Gauge, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from typing_extensions import TypedDict

from kafkadur.admin.subscription_info import SubscriptionInfo, without_records
from kafkadur.metrics import SubscriptionMetrics
from kafkadur.service import acting, reading
from kafkadur.service.access import Tokens
from kafkadur.service.audit import Audit
from kafkadur.service.backend import Backend
from kafkadur.service.dependencies import ANSWERS, TheBackend, Viewer
from kafkadur.service.errors import status_of, trouble
from kafkadur.service.housekeeping import Housekeeper
from kafkadur.service.middleware import SecurityMiddleware
from kafkadur.service.observer import Observer
from kafkadur.service.prometheus import Prometheus
from kafkadur.settings import Settings
from kafkadur_sharing.errors import KafkadurError

_PAGE: Final = Path(__file__).parent / "page"
#: Seconds between two polls for an event, and after which a comment is sent to keep the connection.
_POLL_S, _ALIVE_S = 0.25, 15.0
#: Seconds between two rounds of housekeeping.
_HOUSEKEEPING_S: Final = 30.0
#: Seconds that requests have to end after a signal.
_LAST_S: Final = 3
_ABOUT: Final = """\
Subscriptions of one namespace: look at them, explain them, change them.

Points in time are ISO 8601 in UTC, unless the description of a field says ms since 1970. A value that is null
is not known. Errors of kafkadur have the fields `error`, `message`, `state`, `owner` and `remedy`; a refused
request (401, 403, 413, 422) has `detail`.
"""

router = APIRouter()


class Health(TypedDict):
    """Whether the service can be used."""

    ready: bool
    #: why not
    problem: str | None


@router.get("/livez", summary="Whether the service runs")
async def live() -> Health:
    """Answer, as long as the service can answer at all."""
    return {"ready": True, "problem": None}


@router.get("/readyz", summary="Whether the service can be used", responses={503: {"model": Health}})
async def ready(backend: TheBackend, response: Response) -> Health:
    """Say whether the subscriptions could be read the last time; status 503 if not."""
    seen = backend.observer.latest
    problem = "the subscriptions were not read yet" if seen.number == 0 else None
    problem = problem if seen.problem is None else seen.problem.message
    if not backend.observer.runs:
        problem = "the thread that reads the subscriptions has ended"
    response.status_code = 200 if problem is None else 503
    return {"ready": problem is None, "problem": problem}


@router.get("/metrics", summary="Metrics for Prometheus", response_class=PlainTextResponse, responses=ANSWERS)
def metrics(caller: Viewer, request: Request) -> Response:
    """Return the metrics that `kafkadur metrics` serves, from the last reading of the subscriptions."""
    del caller
    registry: CollectorRegistry = request.app.state.registry
    return Response(generate_latest(registry), media_type=CONTENT_TYPE_PLAIN_0_0_4)


@router.get("/api/v1/events", summary="Events", response_class=StreamingResponse, responses=ANSWERS)
async def events(caller: Viewer, backend: TheBackend, request: Request) -> StreamingResponse:
    """Send an event (text/event-stream) after each reading of the subscriptions: the list is new then."""
    del caller
    ending: Callable[[], bool] = request.app.state.ending
    unbuffered = {"X-Accel-Buffering": "no"}  # nginx would hold the events back
    return StreamingResponse(
        _events(backend.observer, ending), headers=unbuffered, media_type="text/event-stream"
    )


async def _events(observer: Observer, ending: Callable[[], bool]) -> AsyncIterator[str]:
    sent, waited = -1, 0.0
    while not ending():
        seen = observer.latest
        if seen.number != sent:
            told = {"number": seen.number, "at": seen.at, "total": len(seen.entries)}
            yield f"event: looked\ndata: {json.dumps(told)}\n\n"
            sent, waited = seen.number, 0.0
        elif waited > _ALIVE_S:
            yield ": still here\n\n"
            waited = 0.0
        await asyncio.sleep(_POLL_S)  # polls for a condition; a listener that leaves cancels this
        waited += _POLL_S


def server(
    settings: Settings, tokens: Tokens | None, *, every: float, prometheus: str | None = None
) -> uvicorn.Server:
    """Return a server of the application, which ends soon after a signal; see `create`."""
    app = create(settings, tokens, every=every, prometheus=prometheus)
    config = uvicorn.Config(
        app, log_config=None, access_log=False, server_header=False, timeout_graceful_shutdown=_LAST_S
    )
    made = uvicorn.Server(config)
    app.state.ending = lambda: made.should_exit
    return made


def create(
    settings: Settings, tokens: Tokens | None, *, every: float, prometheus: str | None = None
) -> FastAPI:
    """Return the application; it reads the subscriptions while its lifespan lasts.

    `tokens` None: everybody who can reach it may do everything, by a name of the loopback address alone.
    `every`: seconds between two readings of the subscriptions. `prometheus`: URL of the Prometheus that
    scrapes the metrics of subscriptions, for charts of more than an hour.
    """

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
        observer, audit = Observer(settings, every=every), Audit(settings)
        longer = None if prometheus is None else Prometheus(prometheus)
        backend = Backend(settings, observer, audit, longer)
        housekeeper = Housekeeper(settings, lambda: _well_known(observer), every=_HOUSEKEEPING_S)
        app.state.backend = backend
        app.state.registry = CollectorRegistry()
        app.state.registry.register(SubscriptionMetrics(observer))
        leads = Gauge(
            "kafkadur_service_leads", "Whether this service leads those of its namespace.", ("namespace",),
            registry=app.state.registry,
        )  # fmt: skip
        leads.labels(settings.namespace).set_function(lambda: housekeeper.leads)
        observer.start()
        housekeeper.start()
        try:
            yield
        finally:
            for each in (housekeeper, observer, backend, audit):
                await asyncio.to_thread(each.close)

    app = FastAPI(
        title="kafkadur", version="1", description=_ABOUT, lifespan=lifespan,
        docs_url=None, redoc_url=None,  # they load scripts from elsewhere
    )  # fmt: skip
    app.state.tokens = tokens
    app.state.ending = lambda: False
    app.add_exception_handler(KafkadurError, _refuse)
    for each in (router, reading.router, acting.router):
        app.include_router(each)
    app.mount("/", StaticFiles(directory=_PAGE, html=True))
    app.add_middleware(SecurityMiddleware)
    return app


def _well_known(observer: Observer) -> Sequence[SubscriptionInfo]:
    """Return the subscriptions as they were read last, without records of dead letters."""
    seen = observer.latest
    return () if seen.problem is not None else without_records(seen.infos)


async def _refuse(request: Request, error: Exception) -> Response:
    """Answer with an error of kafkadur."""
    del request
    if not isinstance(error, KafkadurError):
        raise error
    return JSONResponse(trouble(error), status_of(error))
