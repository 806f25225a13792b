//! Arguments → command → print the error → exit code. Nothing else.
fn main() {}
