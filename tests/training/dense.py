"""Gated attention, occupancy and capacity written out with [T,T] arrays in float64: the oracle of training."""

from __future__ import annotations

import numpy as np


def visible(doc: np.ndarray) -> np.ndarray:
    """[B,T,T]: causal, inside a document."""
    T = doc.shape[1]
    return (doc[:, :, None] == doc[:, None]) & (doc[:, None] >= 0) & np.tril(np.ones((T, T), bool))


def attention(q, k, v, doc, log_beta) -> np.ndarray:
    """q [B,K,G,T,H], k and v [B,K,T,H], log_beta [B,K,T] or None -> [B,K,G,T,H]; 0 at padding."""
    T, H = q.shape[3:]
    age = np.arange(T)[:, None] - np.arange(T)
    z = np.einsum("bkgth,bksh->bkgts", q, k) / np.sqrt(H)
    if log_beta is not None:
        z = z + (age * log_beta[:, :, None])[:, :, None]
    z = np.where(visible(doc)[:, None, None], z, -np.inf)
    top = z.max(axis=-1, keepdims=True)
    e = np.exp(z - np.where(np.isfinite(top), top, 0))
    p = e / np.maximum(e.sum(axis=-1, keepdims=True), 1e-300)
    return np.einsum("bkgts,bksh->bkgth", p, v)


def occupancy(log_beta, doc) -> np.ndarray:
    """S_t at every t: log_beta [B,K,T] -> [B,K,T]."""
    T = log_beta.shape[2]
    age = np.maximum(np.arange(T)[:, None] - np.arange(T), 0)
    return np.where(visible(doc)[:, None], np.exp(age * log_beta[:, :, None]), 0).sum(axis=-1)


def capacity(alive, place, doc, budget, heads) -> float:
    """alive [...,T] of `heads` heads together; place and doc broadcast against it."""
    h = np.maximum(0, (alive - budget * heads) / np.maximum((place + 1 - budget) * heads, 1))
    h = np.where(doc >= 0, h, 0)
    return float(h.sum() / max((h > 0).sum(), 1))
