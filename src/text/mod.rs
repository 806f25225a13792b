//! Between people's text and the model's ids: tokens, chat templates, and where a reply stops.
//!
//! ```text
//! messages ──template──▶ text + who wrote which byte ──tokens──▶ ids ──▶ model ──▶ ids ──detok──▶ text ──stop_strings──▶ reply
//! ```
//!
//! Three promises hold here. The rendered prompt is, character for character, what the template means in Python.
//! No message can forge a control token, whatever it quotes. And the bytes of a reply are exact.

pub mod added;
mod added_table;
pub mod base64;
pub mod contained;
pub mod detok;
mod pieces;
pub mod sanitize;
pub mod stop;
pub mod stop_strings;
pub mod template;
pub mod tokens;

pub use added::{Author, Authors};
pub use detok::Detokenizer;
pub use stop::StopSet;
pub use stop_strings::StopStrings;
pub use template::{ChatTemplate, Rendered};
pub use tokens::Tokenizer;
