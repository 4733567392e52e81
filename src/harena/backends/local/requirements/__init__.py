"""Packages of `Spec.requirements`, installed once and shown to boxes: `index` (where they come from), `install` (in
boxes), `store` (the folder that keeps them)."""
