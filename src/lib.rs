//! `snug`: a terminal chat client and single-user runtime for language models, losslessly compressed.
//!
//! Modules in reading order.

pub mod error;
pub mod num;

pub mod codec;
pub mod import;
pub mod store;

pub mod text;

pub mod backend;
pub mod bench;
pub mod model;

pub mod engine;

pub mod history;
pub mod telemetry;
pub mod ui;

pub mod commands;
