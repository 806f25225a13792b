//! The CPU backend: the definition of every op.
