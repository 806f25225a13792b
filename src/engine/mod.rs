//! A loaded model on its own thread, driven by commands, heard through events.

pub mod protocol;
