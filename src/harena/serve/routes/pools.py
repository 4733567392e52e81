"""Paths of warm pools."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from harena.serve.routes import models
from harena.serve.routes.context import Context, answer, clocks_of, contents, owner_of, path_options

router = APIRouter(prefix="/v1/pools", tags=["pools"])


@router.post("", **path_options("createPool", models.PoolAnswer, 201, 409))
async def create_pool(request: Request, body: models.NewPool) -> Response:
    """Start to create a pool that keeps boxes ready, and answer at once."""
    context = Context.of(request)
    spec, limits = contents(body.spec, body.limits)
    made = await context.run(
        request,
        lambda: context.service.create_pool(
            owner_of(request),
            body.name,
            namespace=body.namespace,
            image=body.image,
            spec=spec,
            limits=limits,
            replicas=body.replicas,
            clocks=clocks_of(body),
        ),
    )
    return answer(made, 201)


@router.get("", **path_options("listPools", models.PoolList))
async def list_pools(request: Request) -> Response:
    """List the pools of the owner."""
    return answer({"pools": Context.of(request).service.pools(owner_of(request))})


@router.get("/{namespace}/{name}", **path_options("getPool", models.PoolAnswer))
async def get_pool(request: Request, namespace: str, name: str) -> Response:
    """Return what a pool is and how far it is."""
    return answer(Context.of(request).service.pool(owner_of(request), name, namespace).view())


@router.get("/{namespace}/{name}/status", **path_options("getPoolStatus", models.PoolNumbers))
async def get_pool_status(request: Request, namespace: str, name: str) -> Response:
    """Return the numbers of boxes of a pool."""
    return answer(Context.of(request).service.pool(owner_of(request), name, namespace).status())


@router.patch("/{namespace}/{name}", **path_options("scalePool", models.PoolAnswer))
async def scale_pool(request: Request, namespace: str, name: str, body: models.NewScale) -> Response:
    """Keep another number of boxes ready. Ends a drain."""
    context, owner = Context.of(request), owner_of(request)
    scale = context.service.scale_pool
    return answer(await context.run(request, lambda: scale(owner, name, namespace, replicas=body.replicas)))


@router.post("/{namespace}/{name}/drain", **path_options("drainPool", models.PoolAnswer))
async def drain_pool(request: Request, namespace: str, name: str) -> Response:
    """Close the boxes that wait, and lend no more. Sessions that came from the pool continue."""
    context, owner = Context.of(request), owner_of(request)
    return answer(await context.run(request, lambda: context.service.drain_pool(owner, name, namespace)))


@router.delete("/{namespace}/{name}", **path_options("deletePool", models.Empty))
async def delete_pool(request: Request, namespace: str, name: str) -> Response:
    """Close the boxes that wait. Sessions that came from the pool continue."""
    context = Context.of(request)
    await context.end(request, lambda: context.service.delete_pool(owner_of(request), name, namespace))
    return answer({})
