//! What happens to the client, and what it wants done: plain data on both sides of `update`.

use crossterm::event::KeyEvent;

use crate::engine::protocol::{Ask, Event, Load, Loaded, Overflow, Prompt};
use crate::error::{Error, Kind, Result};
use crate::history::{Format, Record, Summary};

/// What happened.
#[derive(Clone, Debug)]
pub enum AppEvent {
    /// A key was pressed.
    Key(KeyEvent),
    /// Text was pasted.
    Paste(String),
    /// The wheel turned by these rows.
    Wheel(isize),
    /// The terminal has this many columns and rows now.
    Resize(u16, u16),
    /// The engine reports.
    Engine(Event),
    /// The machine reports.
    Meters(Meters),
    /// An effect brought something back.
    News(News),
    /// A signal arrived.
    Signal(Kind),
    /// The program was stopped, and goes on.
    Resumed,
}

/// What an effect brought back.
#[derive(Clone, Debug)]
pub enum News {
    /// One passing line.
    Hint(String),
    /// A line for the transcript.
    Note(String),
    /// It failed.
    Failed(Error),
    /// A model of this name is being loaded.
    Loading(String),
    /// The models that are here.
    Models(Vec<ModelRow>),
    /// The sessions that are here.
    Sessions(Vec<Summary>),
    /// The draft as an editor left it.
    Edited(String),
    /// A message to send.
    Said(String),
    /// The session has this id.
    Session(String),
    /// A session was opened.
    Restored(Box<Saved>),
    /// Words that could complete the one before the cursor.
    Completions(Vec<String>),
    /// Bytes a second that this machine was measured to read.
    Bandwidth(f64),
    /// The sampler in one line.
    Sampler(String),
    /// The system message from now on.
    System(String),
    /// Whether conversations are kept from now on.
    Keeps(bool),
}

/// A session that goes on.
#[derive(Clone, Debug, PartialEq)]
pub struct Saved {
    /// Its id.
    pub id: String,
    /// Its lines.
    pub records: Vec<Record>,
}

/// What the client knows of its surroundings.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Facts {
    /// Where conversations are kept.
    pub state_dir: String,
    /// The sampler in one line.
    pub sampler: String,
    /// Bytes a second that this machine was measured to read, where that was done.
    pub measured_bytes_per_s: Option<f64>,
}

/// A model that can be chosen.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelRow {
    /// What to load it by.
    pub reference: String,
    /// How its weights are stored.
    pub variant: String,
    /// Bytes of its weights.
    pub bytes: u64,
    /// Bytes with a cache of `context` tokens, and that context.
    pub needs: Option<(u64, u32)>,
    /// Bytes that are free where it would run.
    pub free: Option<u64>,
    /// Why it cannot be used.
    pub error: Option<String>,
}

/// What the machine reports; every value may be missing.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Meters {
    /// Resident bytes of this process.
    pub rss: Option<u64>,
    /// Free and total bytes of the device's memory.
    pub memory: Option<(u64, u64)>,
    /// Bytes of the device's memory that this process holds, as the driver counts.
    pub held: Option<u64>,
    /// Percent of time that the GPU was busy.
    pub busy_percent: Option<u32>,
    /// Degrees Celsius.
    pub celsius: Option<u32>,
    /// Watts drawn, and allowed.
    pub watts: Option<(u32, u32)>,
    /// Clock of the multiprocessors.
    pub mhz: Option<u32>,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Ask the engine.
    Ask {
        /// What.
        prompt: Prompt,
        /// When it is too long.
        overflow: Overflow,
        /// At most so many tokens, in place of what the command line says.
        max_tokens: Option<u32>,
    },
    /// Show the prompt.
    Explain(Prompt),
    /// Stop what the engine does.
    Cancel,
    /// Load a model; the one before is let go first.
    Load(String),
    /// What was being loaded is not there.
    LoadFailed,
    /// Add to the session.
    Record(Record),
    /// Add to the messages that were sent.
    Remember(String),
    /// Begin another session with the next message.
    NewSession,
    /// Go on with a session.
    Resume(String),
    /// List models to choose from.
    Models,
    /// List sessions to choose from.
    Sessions,
    /// Put text into the clipboard; the second says what it is.
    Copy(String, String),
    /// Let the user edit text in an editor.
    Editor(String),
    /// Show text on the normal screen until a key is pressed.
    Raw(String),
    /// Show text in a pager.
    Pager(String),
    /// Stop this program, as Ctrl-Z does.
    Suspend,
    /// Draw everything again.
    Redraw,
    /// Report the wheel, or not.
    Mouse(bool),
    /// Set a sampler value.
    Set(String, String),
    /// Say what the sampler is.
    Params,
    /// Send files.
    Read(String),
    /// The system message from a file.
    SystemFile(String),
    /// Write the conversation to a file.
    Export(Format, Vec<Record>, String),
    /// Keep conversations, or not.
    Keep(bool),
    /// Remove the messages that were sent.
    ForgetPrompts,
    /// Complete a path or a model.
    Complete(Completing),
    /// Say what would fit.
    Fit,
    /// Say which devices there are.
    Devices,
    /// Ask a thinking model to think, or not.
    Think(bool),
    /// Show text as tokens.
    Tokens(String),
    /// Write what is known of this client to this file.
    Dump(String, String),
}

/// What is to be completed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Completing {
    /// A model that begins like this.
    Model(String),
    /// A path that begins like this.
    Path(String),
}

/// What the client needs from the rest of the program: names, files, settings. Called on the thread that draws, so
/// nothing here may take long.
pub trait Host {
    /// How to load what people call `reference`; what follows may set the context (`NAME -c N`).
    fn load(&mut self, reference: &str) -> Result<Load>;
    /// The ask for a prompt.
    fn ask(&mut self, loaded: &Loaded, prompt: Prompt, overflow: Overflow) -> Result<Ask>;
    /// Does an effect that is neither the engine's nor the terminal's.
    fn perform(&mut self, effect: Effect, loaded: Option<&Loaded>) -> Result<Vec<News>>;
}
