//! The one function that says what a loaded model takes; loader, `fit` and panels all use it.
