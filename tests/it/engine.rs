//! The engine by itself: scripted conversations on the built-in model and on a scripted device.

use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use serde::Deserialize;
use snug::backend::Device;
use snug::backend::scripted::Script;
use snug::engine::Engine;
use snug::engine::protocol::{
    Ask, Command, Event, Finish, Load, Loaded, Message, Overflow, Prompt, Stats, Token, Variant,
};
use snug::error::{Error, Kind};
use snug::model::op::Sampling;
use snug::num::rng::Stream;

use crate::golden;

/// Nothing takes this long; a test that waits for it has failed.
const PATIENCE: Duration = Duration::from_secs(120);

struct Talk {
    engine: Engine,
    events: Receiver<Event>,
}

/// All that came of an ask.
#[derive(Debug)]
struct Heard {
    ids: Vec<u32>,
    tokens: Vec<Token>,
    text: String,
    finish: Finish,
    stats: Stats,
    truncated: Option<(u32, u32)>,
    error: Option<Error>,
}

fn load(device: Device) -> Load {
    Load {
        name: "demo".into(),
        path: None,
        variant: Some(Variant::Lossless),
        device,
        context: None,
        threads: Some(2),
        chat_template: None,
    }
}

fn user(text: &str) -> Message {
    Message { role: "user".into(), content: text.into() }
}

fn said(text: &str) -> Message {
    Message { role: "assistant".into(), content: text.into() }
}

/// Greedy, forty tokens.
fn ask(messages: Vec<Message>) -> Ask {
    Ask {
        prompt: Prompt::Chat(messages),
        sampling: Sampling::default(),
        max_tokens: Some(40),
        stop: Vec::new(),
        ignore_eos: false,
        logprobs: 0,
        template_kwargs: None,
        overflow: Overflow::Refuse,
    }
}

impl Talk {
    fn start(load: Load) -> (Talk, Loaded) {
        let (tx, events) = mpsc::sync_channel(64);
        let talk = Talk { engine: Engine::spawn(tx).unwrap(), events };
        let loaded = talk.load(load).unwrap();
        (talk, loaded)
    }

    fn demo() -> Talk {
        Talk::start(load(Device::Cpu)).0
    }

    fn scripted(script: Script) -> Talk {
        Talk::start(load(Device::Scripted(script))).0
    }

    fn next(&self) -> Event {
        self.events.recv_timeout(PATIENCE).expect("the engine is silent")
    }

    fn load(&self, load: Load) -> Result<Loaded, Error> {
        self.engine.send(Command::Load(load));
        loop {
            match self.next() {
                Event::Ready(loaded) => return Ok(*loaded),
                Event::Failed(e) => return Err(e),
                Event::Loading { done, of, .. } => assert!(done <= of),
                other => panic!("while loading: {other:?}"),
            }
        }
    }

    fn ask(&self, ask: Ask) -> Heard {
        self.engine.send(Command::Ask(ask));
        self.hear()
    }

    fn hear(&self) -> Heard {
        let mut heard = Heard {
            ids: Vec::new(),
            tokens: Vec::new(),
            text: String::new(),
            finish: Finish::Error,
            stats: Stats::default(),
            truncated: None,
            error: None,
        };
        loop {
            match self.next() {
                Event::Token(token) => {
                    heard.ids.push(token.id);
                    heard.tokens.push(token);
                }
                Event::Text(text) => {
                    assert!(!text.is_empty(), "an empty piece");
                    heard.text += &text;
                }
                Event::Truncated { from, to } => heard.truncated = Some((from, to)),
                Event::Failed(e) => heard.error = Some(e),
                Event::Done { reason, stats } => {
                    (heard.finish, heard.stats) = (reason, stats);
                    assert_eq!(heard.stats.completion_tokens as usize, heard.ids.len());
                    return heard;
                }
                Event::Unloaded => assert!(heard.error.is_some(), "let go without a fault"),
                Event::Begun { prompt_tokens, .. } => assert!(prompt_tokens > 0),
                Event::Reading { done, of } => assert!(done <= of),
                Event::Stats(_) | Event::Reasoning(_) => {}
                other => panic!("while replying: {other:?}"),
            }
        }
    }
}

#[derive(Deserialize)]
struct Golden {
    chats: Vec<Chat>,
}

#[derive(Deserialize)]
struct Chat {
    messages: Vec<Turn>,
    ids: Vec<u32>,
    greedy: Vec<u32>,
    reply: String,
}

#[derive(Deserialize)]
struct Turn {
    role: String,
    content: String,
}

#[test]
fn conversations_are_those_of_the_reference() {
    let golden: Golden = golden::parse(&golden::root().join("demo.json"));
    let talk = Talk::demo();
    for chat in golden.chats {
        let messages: Vec<Message> = chat
            .messages
            .into_iter()
            .map(|t| Message { role: t.role, content: t.content })
            .collect();
        // The reference went on after end tokens.
        let most = Some(chat.greedy.len() as u32);
        let on = Ask { max_tokens: most, ignore_eos: true, ..ask(messages.clone()) };
        let heard = talk.ask(on);
        assert_eq!(heard.stats.prompt_tokens as usize, chat.ids.len());
        assert_eq!(heard.ids, chat.greedy);
        assert_eq!(heard.text, chat.reply);
        assert_eq!(heard.finish, Finish::Length);
        // We stop at the first, which is no part of the reply.
        let heard = talk.ask(Ask { max_tokens: most, ..ask(messages) });
        let end = chat.greedy.iter().position(|id| [0, 2].contains(id));
        assert_eq!(heard.ids, chat.greedy[..end.unwrap_or(chat.greedy.len())]);
        assert_eq!(heard.finish, if end.is_some() { Finish::Stop } else { Finish::Length });
    }
}

#[test]
fn a_reused_cache_gives_the_tokens_of_a_fresh_one() {
    let talk = Talk::demo();
    let mut turns = vec![user("Tell me a story about a bear.")];
    let mut reused = Vec::new();
    for next in ["What is the moral?", "Give it a title.", "Tell me another one."] {
        let heard = talk.ask(ask(turns.clone()));
        if !reused.is_empty() {
            // All but the last turn was there: the reply included, as it was cut by its length and so has no end token.
            assert!(heard.stats.cached_tokens > 40, "{:?}", heard.stats);
        }
        turns.push(said(&heard.text));
        turns.push(user(next));
        reused.push(heard.ids);
    }
    for (i, ids) in reused.iter().enumerate() {
        let fresh = Talk::demo().ask(ask(turns[..2 * i + 1].to_vec()));
        assert_eq!(fresh.stats.cached_tokens, 0);
        assert_eq!(&fresh.ids, ids, "turn {i}");
    }
    // Rewound, and asked again: the same, from the cache.
    let again = talk.ask(ask(turns[..1].to_vec()));
    assert_eq!(again.ids, reused[0]);
    assert!(again.stats.cached_tokens > 0);
    // The very same prompt leaves one token to run.
    let once_more = talk.ask(ask(turns[..1].to_vec()));
    assert_eq!(once_more.stats.cached_tokens, once_more.stats.prompt_tokens - 1);
    assert_eq!(once_more.ids, reused[0]);
}

#[test]
fn sampling_depends_on_the_seed_and_on_nothing_else() {
    let talk = Talk::demo();
    let sampled = |talk: &Talk, seed| {
        let sampling = Sampling { temperature: 1.0, top_k: 40, seed, ..Sampling::default() };
        talk.ask(Ask { sampling, ..ask(vec![user("Tell me a story.")]) }).ids
    };
    let first: Vec<Vec<u32>> = (1..5).map(|seed| sampled(&talk, seed)).collect();
    assert!(first.iter().any(|ids| *ids != first[0]));
    // Other prompts between, another order, another engine.
    talk.ask(ask(vec![user("What is rain?")]));
    for seed in [3u64, 1, 4, 2] {
        assert_eq!(sampled(&talk, seed), first[seed as usize - 1], "seed {seed}");
    }
    assert_eq!(sampled(&Talk::demo(), 2), first[1]);
    // A ban is a ban.
    let banned = first[0][0];
    let sampling =
        Sampling { logit_bias: vec![(banned, f32::NEG_INFINITY)], ..Sampling::default() };
    let heard = talk.ask(Ask { sampling, ..ask(vec![user("Tell me a story.")]) });
    assert!(!heard.ids.contains(&banned));
}

#[test]
fn the_context_fills_to_its_last_token() {
    let (talk, loaded) = Talk::start(Load { context: Some(64), ..load(Device::Cpu) });
    assert_eq!((loaded.context, loaded.context_limit), (64, 1024));
    let endless = Ask { max_tokens: None, ignore_eos: true, ..ask(vec![user("Tell me a story.")]) };
    let heard = talk.ask(endless.clone());
    assert_eq!(heard.finish, Finish::Context);
    assert_eq!(heard.stats.prompt_tokens + heard.stats.completion_tokens, 64);
    assert_eq!(heard.stats.context_used, 64);
    // The tokens are those of a larger context.
    let roomy = Talk::demo().ask(Ask { max_tokens: Some(heard.ids.len() as u32), ..endless });
    assert_eq!(heard.ids, roomy.ids);
}

#[test]
fn shifting_keeps_the_system_message_and_the_last_turn() {
    let (talk, _) = Talk::start(Load { context: Some(96), ..load(Device::Cpu) });
    let system = Message { role: "system".into(), content: "Be kind.".into() };
    let filler = "one two three four five six seven eight nine ten";
    let mut turns = vec![system.clone()];
    for _ in 0..4 {
        turns.extend([user(filler), said("yes")]);
    }
    turns.push(user("What is rain?"));
    let long = Ask { overflow: Overflow::Shift, max_tokens: Some(12), ..ask(turns.clone()) };
    let heard = talk.ask(long.clone());
    let (from, to) = heard.truncated.expect("it says so");
    assert_eq!(to, heard.stats.prompt_tokens);
    assert!(from > 96 && to + 12 <= 96, "{from} to {to}");
    // What is left is a whole conversation.
    let left = (1..turns.len()).rev().find_map(|start| {
        let some = [vec![system.clone()], turns[start..].to_vec()].concat();
        let fresh = talk.ask(Ask { max_tokens: Some(12), ..ask(some) });
        (fresh.stats.prompt_tokens == to).then_some(fresh.ids)
    });
    assert_eq!(left.as_ref(), Some(&heard.ids));
    // Without leave it is refused, with counts; the engine goes on.
    let refused = talk.ask(Ask { overflow: Overflow::Refuse, ..long });
    let e = refused.error.unwrap();
    assert_eq!((e.kind, refused.finish), (Kind::ContextOverflow, Finish::Error));
    assert!(e.why.contains(&from.to_string()) && e.why.contains("96"), "{e}");
    assert_eq!(talk.ask(ask(vec![user("What is rain?")])).finish, Finish::Stop);
}

#[test]
fn stop_strings_never_show_however_tokens_cut_them() {
    let talk = Talk::demo();
    let whole = talk.ask(ask(vec![user("Tell me a story.")])).text;
    let mut draws = Stream::new(7);
    let ends: Vec<usize> = whole.char_indices().map(|(i, _)| i).collect();
    for _ in 0..24 {
        let from = ends[draws.below(ends.len() as u32 - 6) as usize];
        let to = (from + 1 + draws.below(6) as usize).min(whole.len());
        let (Some(stop), Some(at)) =
            (whole.get(from..to), whole.get(from..to).and_then(|s| whole.find(s)))
        else {
            continue;
        };
        let heard =
            talk.ask(Ask { stop: vec![stop.into()], ..ask(vec![user("Tell me a story.")]) });
        assert_eq!(heard.finish, Finish::StopString, "{stop:?}");
        assert_eq!(heard.text, whole[..at], "{stop:?}");
    }
}

#[test]
fn cancelling_overtakes_what_was_sent_and_spares_what_comes_later() {
    let script = Script { tokens: vec![501], step_ms: 5, max_step: Some(1), ..Script::default() };
    let talk = Talk::scripted(script);
    let endless = Ask { max_tokens: None, ..ask(vec![user("talk")]) };
    // Before it begins.
    talk.engine.send(Command::Ask(endless.clone()));
    talk.engine.send(Command::Ask(endless.clone()));
    talk.engine.canceller().cancel();
    talk.engine.send(Command::Ask(Ask { max_tokens: Some(3), ..endless.clone() }));
    let three: Vec<Heard> = (0..3).map(|_| talk.hear()).collect();
    let ends: Vec<Finish> = three.iter().map(|h| h.finish).collect();
    assert_eq!(ends, [Finish::Cancelled, Finish::Cancelled, Finish::Length]);
    // In the middle: what was said stays said.
    talk.engine.send(Command::Ask(endless));
    while !matches!(talk.next(), Event::Text(_)) {}
    talk.engine.canceller().cancel();
    assert_eq!(talk.hear_rest(), Finish::Cancelled);
    // Loading too.
    let slow = Script { load_ms: 3_600_000, ..Script::default() };
    talk.engine.send(Command::Load(load(Device::Scripted(slow))));
    while !matches!(talk.next(), Event::Loading { .. }) {}
    talk.engine.canceller().cancel();
    loop {
        match talk.next() {
            Event::Failed(e) => break assert_eq!(e.kind, Kind::Interrupted),
            Event::Loading { .. } => {}
            other => panic!("{other:?}"),
        }
    }
}

impl Talk {
    fn hear_rest(&self) -> Finish {
        loop {
            if let Event::Done { reason, .. } = self.next() {
                return reason;
            }
        }
    }
}

#[test]
fn failures_and_panics_leave_an_engine_that_says_so() {
    let tokens = vec![501; 8];
    let talk =
        Talk::scripted(Script { tokens: tokens.clone(), fail_at: Some(3), ..Script::default() });
    let heard = talk.ask(ask(vec![user("hi")]));
    assert_eq!((heard.finish, heard.ids.len()), (Finish::Error, 3));
    assert_eq!(heard.error.unwrap().what, "cannot compute a token");
    // Nothing of a failed step is reused.
    assert_eq!(talk.ask(ask(vec![user("hi")])).stats.cached_tokens, 0);
    let talk = Talk::scripted(Script { tokens, panic_at: Some(2), ..Script::default() });
    let heard = talk.ask(ask(vec![user("hi")]));
    assert_eq!((heard.finish, heard.ids.len()), (Finish::Error, 2));
    let e = heard.error.unwrap();
    assert!(e.why.contains("internal error") && e.why.contains("panics at token 2"), "{e}");
    let after = talk.ask(ask(vec![user("hi")]));
    assert!(after.error.unwrap().why.contains("no model"), "the model went with the panic");
    assert_eq!(talk.load(load(Device::Cpu)).unwrap().name, "demo");
    assert!(talk.ask(ask(vec![user("Hello!")])).error.is_none());
}

#[test]
fn an_engine_that_nobody_hears_ends() {
    let (tx, events) = mpsc::sync_channel(1);
    let engine = Engine::spawn(tx).unwrap();
    // More events than fit, and nobody takes them: dropping must not hang.
    let script = Script { tokens: vec![501], ..Script::default() };
    engine.send(Command::Load(load(Device::Scripted(script))));
    engine.send(Command::Ask(Ask { max_tokens: None, ..ask(vec![user("talk")]) }));
    drop(engine);
    drop(events);
    // Nor when the listener goes first.
    let (tx, events) = mpsc::sync_channel(1);
    let engine = Engine::spawn(tx).unwrap();
    drop(events);
    engine.send(Command::Load(load(Device::Cpu)));
    drop(engine);
}

#[test]
fn what_cannot_be_loaded_is_said() {
    let talk = Talk::demo();
    let e = talk.load(Load { variant: Some(Variant::Bf16), ..load(Device::Cpu) }).unwrap_err();
    assert_eq!(e.kind, Kind::BadFile);
    let e = talk.load(Load { context: Some(1025), ..load(Device::Cpu) }).unwrap_err();
    assert!(e.kind == Kind::Usage && e.why.contains("1024"), "{e}");
    let e = talk.load(load(Device::Cuda(0))).unwrap_err();
    assert_eq!(e.kind, Kind::NoGpu);
    let e = talk
        .load(Load { path: Some("/nonexistent.snug".into()), ..load(Device::Cpu) })
        .unwrap_err();
    assert_eq!(e.kind, Kind::ModelNotFound);
    let e = talk
        .load(Load { chat_template: Some("{% if %}".into()), ..load(Device::Cpu) })
        .unwrap_err();
    assert_eq!(e.kind, Kind::BadFile);
}
