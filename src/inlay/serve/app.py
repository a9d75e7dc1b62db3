"""The HTTP application: every route, the guards before them, and the pages."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from inlay.serve.adapters import AdapterRoutes
from inlay.serve.admin import AdminRoutes
from inlay.serve.config import ServeConfig
from inlay.serve.dashboard.source import EngineStatus
from inlay.serve.guard import KeyGuard
from inlay.serve.openai.chat import ChatRoute
from inlay.serve.openai.completions import CompletionRoute
from inlay.serve.openai.errors import describe, error_object, json_response
from inlay.serve.openai.http import answering, counted
from inlay.serve.openai.models import ModelsRoute
from inlay.serve.openai.tokenize import TokenizeRoutes
from inlay.serve.page import Pages
from inlay.serve.service import Service
from inlay.serve.sessions import SessionRoutes
from inlay.serve.sglang import SglangRoutes
from inlay.serve.status_route import StatusRoute
from inlay.serve.weights.routes import WeightRoutes
from inlay.serve.weights.updates import Updates

if TYPE_CHECKING:
    from inlay.serve.cluster_routes import ClusterRoutes  # an engine alone needs no dispatcher

Handler = Callable[[Request], Awaitable[Response]]


def create_app(
    service: Service,
    config: ServeConfig,
    cluster: "ClusterRoutes | None" = None,
    updates: Updates | None = None,
) -> Starlette:
    """Put routes, guards and the pages together.

    Args:
        cluster: what a dispatcher says of its instances; None behind one engine.
        updates: of weights; None: they stay as they are.

    Bodies are read by msgspec, which is several times cheaper than FastAPI's way and names wrong
    values as OpenAI's clients expect.
    """
    models, tokens = ModelsRoute(service), TokenizeRoutes(service)
    sessions, adapters = SessionRoutes(service), AdapterRoutes(service)
    admin, sglang = AdminRoutes(service), SglangRoutes(service)
    health = admin.health if cluster is None else cluster.health
    status = EngineStatus(service) if cluster is None else cluster.status_of(service)
    generating: list[tuple[str, Handler]] = [
        ("/v1/chat/completions", ChatRoute(service).handle),
        ("/v1/completions", CompletionRoute(service).handle),
        ("/generate", sglang.generate),
    ]
    reading: list[tuple[str, Handler]] = [
        ("/v1/models", models.handle),
        ("/v1/models/{name:path}", models.handle),
        ("/health", health),
        ("/ping", health),
        ("/version", admin.version),
        ("/cluster/status", StatusRoute(status).handle),
        ("/metrics", admin.metrics),
        ("/tokenizer_info", tokens.info),
        ("/server_info", sglang.server_info),
        ("/get_server_info", sglang.server_info),
        ("/model_info", sglang.model_info),
        ("/get_model_info", sglang.model_info),
    ]
    acting: list[tuple[str, Handler]] = [
        ("/tokenize", tokens.tokenize),
        ("/detokenize", tokens.detokenize),
        ("/v1/sessions/{session_id}/pause", sessions.pause),
        ("/v1/sessions/{session_id}/resume", sessions.resume),
        ("/v1/load_lora_adapter", adapters.load),
        ("/v1/unload_lora_adapter", adapters.unload),
        ("/load_lora_adapter", adapters.sglang_load),
        ("/unload_lora_adapter", adapters.sglang_unload),
        ("/reset_prefix_cache", admin.reset_cache),
        ("/flush_cache", admin.reset_cache),
    ]
    if updates is not None:
        weights = WeightRoutes(service, updates)
        reading.append(("/v1/weights", weights.show if cluster is None else cluster.weights))
        acting += [
            ("/v1/weights/update", weights.update),
            ("/v1/rollouts/pause", weights.pause),
            ("/v1/rollouts/resume", weights.resume),
        ]
    if cluster is not None:
        reading.append(("/debug/decisions", cluster.decisions))
    routes: list[BaseRoute] = [
        *(Route(path, counted(service, handler), methods=["POST"]) for path, handler in generating),
        *(Route(path, answering(handler), methods=["GET"]) for path, handler in reading),
        *(Route(path, answering(handler), methods=["POST"]) for path, handler in acting),
    ]
    pages = Pages(service, config, status) if config.page else None
    if pages is not None:
        routes.append(pages.mount)
    app = Starlette(
        routes=routes,
        exception_handlers={HTTPException: _http_error, Exception: _unexpected},
        lifespan=None if pages is None else pages.lifespan,
    )
    if config.api_key is not None:
        app.add_middleware(KeyGuard, api_key=config.api_key)
    if config.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(config.cors_origins),
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=["Retry-After"],
        )
    return app


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    what = f"{request.method} {request.url.path}"
    if error.status_code == 404:
        message, code = f"{what}: there is no such path here", "not_found"
    elif error.status_code == 405:
        message, code = f"{what}: this path takes another method", "method_not_allowed"
    else:
        message, code = str(error.detail), None
    body = error_object(error.status_code, message, code, None)
    return json_response(body, status=error.status_code, headers=dict(error.headers or {}))


async def _unexpected(request: Request, error: Exception) -> Response:
    status, body, headers = describe(error)
    return json_response(body, status=status, headers=headers)
