"""Contenders in JAX and NumPyro: hand-written LOORF, and NumPyro's graph-based ELBO (less work, no baseline)."""

from functools import partial
from itertools import pairwise
from typing import Any

from task import BATCH, LATENTS, PIXELS, SAMPLES, SLOPE, contender, layer_sizes, serve

ME = contender()

import jax  # noqa: E402 (the process is pinned first)
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import numpyro  # noqa: E402
import numpyro.distributions as dist  # noqa: E402
import optax  # noqa: E402
from numpyro.infer import TraceGraph_ELBO  # noqa: E402

Weights = dict[str, Any]


def initial_weights(seed: int) -> Weights:
    random = np.random.default_rng(seed)

    def layers(sizes: list[int]) -> list[tuple[Any, Any]]:
        return [
            (jnp.asarray(random.normal(size=shape, scale=0.05), jnp.float32), jnp.zeros(shape[1]))
            for shape in pairwise(sizes)
        ]

    encoder, decoder = layer_sizes(ME.network)
    return {"encoder": layers(encoder), "decoder": layers(decoder), "prior": jnp.zeros(LATENTS)}


def apply(layers: list[tuple[Any, Any]], x: Any) -> Any:
    for index, (weight, bias) in enumerate(layers):
        x = x @ weight + bias
        if index < len(layers) - 1:
            x = jax.nn.leaky_relu(x, SLOPE)
    return x


def log_prob(x: Any, logits: Any) -> Any:
    return (x * logits - jax.nn.softplus(logits)).sum(-1)


def loss_by_hand(weights: Weights, key: Any, x: Any) -> Any:
    logits = apply(weights["encoder"], x)
    noise = jax.random.uniform(key, (SAMPLES, BATCH, LATENTS))
    b = (noise < jax.nn.sigmoid(logits)).astype(jnp.float32)
    log_q = log_prob(b, logits)
    log_p = log_prob(x, apply(weights["decoder"], b)) + log_prob(b, weights["prior"])
    elbo = log_p - jax.lax.stop_gradient(log_q)
    known = jax.lax.stop_gradient(elbo)
    signal = (known - known.mean(0)) * SAMPLES / (SAMPLES - 1)
    return -(elbo + signal * log_q).mean()


def loss_of_numpyro(weights: Weights, key: Any, x: Any) -> Any:
    def model(x: Any) -> None:
        prior = jnp.broadcast_to(weights["prior"], (BATCH, LATENTS))
        with numpyro.plate("images", BATCH):
            z = numpyro.sample("z", dist.Bernoulli(logits=prior).to_event(1))
            pixels = apply(weights["decoder"], z.astype(jnp.float32))
            numpyro.sample("x", dist.Bernoulli(logits=pixels).to_event(1), obs=x)

    def guide(x: Any) -> None:
        with numpyro.plate("images", BATCH):
            logits = apply(weights["encoder"], x)
            numpyro.sample("z", dist.Bernoulli(logits=logits).to_event(1))

    return TraceGraph_ELBO(num_particles=SAMPLES).loss(key, {}, model, guide, x) / BATCH


LOSSES = {"JAX": loss_by_hand, "NumPyro": loss_of_numpyro}
LABELS = {"encoder": "adam", "decoder": "adam", "prior": "sgd"}


def main() -> None:
    loss = LOSSES[ME.name]
    optimizers = {"adam": optax.adam(1e-4), "sgd": optax.sgd(1e-2)}
    optimizer = optax.multi_transform(optimizers, LABELS)

    def update(weights: Weights, state: Any, key: Any, x: Any) -> tuple[Weights, Any, Any]:
        key, own = jax.random.split(key)
        grads = jax.grad(loss)(weights, own, x)
        changes, state = optimizer.update(grads, state, weights)
        return optax.apply_updates(weights, changes), state, key

    replicas = ME.replicas
    several = [initial_weights(seed) for seed in range(replicas)]
    images = (np.random.default_rng(0).random((20, replicas, BATCH, PIXELS)) < 0.3).astype(
        np.float32
    )
    keys = jax.random.split(jax.random.PRNGKey(0), replicas)
    if replicas == 1:
        weights, keys, batches = several[0], keys[0], [jnp.asarray(one[0]) for one in images]
        advance, state = update, optimizer.init(weights)
    else:
        weights = jax.tree.map(lambda *leaves: jnp.stack(leaves), *several)
        advance, state = jax.vmap(update), jax.vmap(optimizer.init)(weights)
        batches = [jnp.asarray(one) for one in images]
    run = partial(jax.jit, donate_argnums=(0, 1))(advance)
    at = [weights, state, keys, 0]

    def step() -> None:
        weights, state, keys, count = at
        at[:] = [*run(weights, state, keys, batches[count % len(batches)]), count + 1]

    serve(step, lambda: jax.block_until_ready(at[0]), replicas)


if __name__ == "__main__":
    main()
