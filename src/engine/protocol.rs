//! What crosses between the engine thread and whoever shows its work: plain data, nothing else.

use std::path::PathBuf;
use std::time::Duration;

use crate::backend::{Card, Device, Ledger};
use crate::error::Error;
use crate::model::op::Sampling;

/// One chat message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// `system`, `user` or `assistant`.
    pub role: String,
    /// Its text.
    pub content: String,
}

/// What the model is to answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Prompt {
    /// Rendered through the chat template.
    Chat(Vec<Message>),
    /// The same, for a reply that begins with this text already.
    Continue(Vec<Message>, String),
    /// Sent as it is; special tokens are not recognised in it.
    Raw(String),
}

/// What to do when prompt and reply do not fit in the context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overflow {
    /// Fail with `Kind::ContextOverflow`.
    Refuse,
    /// Drop the oldest turns after the system message, and say so.
    Shift,
    /// Cut the middle of the prompt's tokens, and say so.
    TruncateMiddle,
}

/// A request for a reply.
#[derive(Clone, Debug, PartialEq)]
pub struct Ask {
    /// What to answer.
    pub prompt: Prompt,
    /// How to choose tokens.
    pub sampling: Sampling,
    /// At most this many new tokens; `None` is until the context is full.
    pub max_tokens: Option<u32>,
    /// Strings that end the reply (not part of it).
    pub stop: Vec<String>,
    /// Never stop at end tokens.
    pub ignore_eos: bool,
    /// Probabilities of the k best tokens with every token; 0 is off.
    pub logprobs: u32,
    /// Extra variables for the template, as a JSON object.
    pub template_kwargs: Option<String>,
    /// When it does not fit.
    pub overflow: Overflow,
}

/// How weights are stored, in the words people use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// As bf16.
    Bf16,
    /// Compressed without loss.
    Lossless,
}

impl Variant {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Variant::Bf16 => "bf16",
            Variant::Lossless => "lossless",
        }
    }
}

/// What loading is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Reading the file and checking every record.
    Check,
    /// Handing the weights to the device.
    Upload,
}

impl Phase {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Phase::Check => "checking",
            Phase::Upload => "loading",
        }
    }
}

/// How to load a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Load {
    /// How people call it.
    pub name: String,
    /// A `.snug` file or a model directory; `None` is the built-in demo.
    pub path: Option<PathBuf>,
    /// Refuse weights that are stored otherwise; bf16 ones that are to be lossless are packed.
    pub variant: Option<Variant>,
    /// Where to run.
    pub device: Device,
    /// Context to reserve, in tokens; `None` is the smaller of the model's own and 8,192.
    pub context: Option<u32>,
    /// Worker threads; `None` is one per core.
    pub threads: Option<usize>,
    /// Replaces the model's chat template.
    pub chat_template: Option<String>,
}

/// From the shower to the engine.
#[derive(Clone, Debug)]
pub enum Command {
    /// Load a model, dropping the one before.
    Load(Load),
    /// Reply.
    Ask(Ask),
    /// Show the prompt of a reply, without making it.
    Explain(Ask),
    /// End the thread.
    Quit,
}

/// Why a reply ended. The names are OpenAI's where one exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// An end token.
    Stop,
    /// `max_tokens` reached.
    Length,
    /// A stop string.
    StopString,
    /// The context is full.
    Context,
    /// Asked to stop.
    Cancelled,
    /// Something failed; the error follows.
    Error,
}

impl Finish {
    /// By its name.
    pub fn named(name: &str) -> Option<Finish> {
        use Finish::*;
        [Stop, Length, StopString, Context, Cancelled, Error].into_iter().find(|f| f.name() == name)
    }

    /// The `finish_reason` of JSON output.
    pub fn name(self) -> &'static str {
        match self {
            Finish::Stop => "stop",
            Finish::Length => "length",
            Finish::StopString => "stop_string",
            Finish::Context => "context",
            Finish::Cancelled => "cancelled",
            Finish::Error => "error",
        }
    }
}

/// One token of the reply.
#[derive(Clone, Debug, PartialEq)]
pub struct Token {
    /// Its id.
    pub id: u32,
    /// Its exact bytes.
    pub bytes: Vec<u8>,
    /// Its log-probability and the best alternatives, when asked for.
    pub logprobs: Option<Logprobs>,
}

/// Log-probabilities at one position (natural log, before temperature and truncation).
#[derive(Clone, Debug, PartialEq)]
pub struct Logprobs {
    /// The chosen token's.
    pub chosen: f32,
    /// The best, most likely first: id, bytes, log-probability.
    pub top: Vec<(u32, Vec<u8>, f32)>,
}

/// What is known of a loaded model.
#[derive(Clone, Debug, PartialEq)]
pub struct Loaded {
    /// How people call it.
    pub name: String,
    /// `bf16` or `lossless`.
    pub variant: String,
    /// Where it runs.
    pub card: Card,
    /// Context reserved, in tokens.
    pub context: u32,
    /// The most context the model knows.
    pub context_limit: u32,
    /// Bytes of its weights as stored, or as packed while they were loaded.
    pub weight_bytes: u64,
    /// Bytes they had before, when they were packed while they were loaded.
    pub packed_from: Option<u64>,
    /// Number of weights.
    pub parameters: u64,
    /// Defaults from generation_config.json.
    pub defaults: Sampling,
    /// Stop ids and where each came from.
    pub stops: Vec<(u32, String)>,
    /// How long loading took.
    pub took: Duration,
    /// Memory held.
    pub ledger: Ledger,
    /// Weight and cache bytes read for the first token.
    pub bytes_per_token: u64,
}

/// Counts and times of a reply, so far or in all.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stats {
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Of these, already in the cache.
    pub cached_tokens: u32,
    /// Tokens of the reply.
    pub completion_tokens: u32,
    /// Of these, thinking.
    pub reasoning_tokens: u32,
    /// Time spent on the prompt.
    pub prefill: Duration,
    /// Time from the ask to the first token.
    pub ttft: Duration,
    /// Time spent on the reply after its first token.
    pub decode: Duration,
    /// Weight and cache bytes read per token, now.
    pub bytes_per_token: u64,
    /// Tokens in the cache.
    pub context_used: u32,
    /// Memory held.
    pub ledger: Ledger,
}

/// A prompt as the model gets it.
#[derive(Clone, Debug, PartialEq)]
pub struct Explained {
    /// Its tokens: id, text, whether it is a control token.
    pub tokens: Vec<(u32, String, bool)>,
    /// Of these, already in the cache.
    pub cached: usize,
    /// How the next token would be chosen.
    pub sampling: Sampling,
}

/// From the engine to the shower.
#[derive(Clone, Debug)]
pub enum Event {
    /// Loading: bytes done of bytes in all.
    Loading {
        /// What is being done.
        phase: Phase,
        /// Bytes done.
        done: u64,
        /// Bytes in all.
        of: u64,
    },
    /// A model is loaded.
    Ready(Box<Loaded>),
    /// The prompt is known and fits; it is read next.
    Begun {
        /// Its tokens.
        prompt_tokens: u32,
        /// Of these, already in the cache.
        cached_tokens: u32,
    },
    /// The prompt is being read: tokens done of tokens in all.
    Reading {
        /// Tokens done.
        done: u32,
        /// Tokens in all.
        of: u32,
    },
    /// Parts of the prompt were dropped to make it fit.
    Truncated {
        /// Token count before.
        from: u32,
        /// Token count after.
        to: u32,
    },
    /// A token was chosen.
    Token(Token),
    /// Text that is now complete (whole UTF-8 characters, stop strings held back).
    Text(String),
    /// The same of the thinking before the answer.
    Reasoning(String),
    /// Progress, at most ten times a second.
    Stats(Stats),
    /// The reply has ended; partial text stays valid.
    Done {
        /// Why.
        reason: Finish,
        /// Totals.
        stats: Stats,
    },
    /// A prompt as the model gets it, after [`Command::Explain`].
    Explained(Box<Explained>),
    /// After an internal fault the model was let go: nothing about its state is known.
    Unloaded,
    /// The command failed. After an `Ask`, `Done` with `Finish::Error` follows.
    Failed(Error),
}
