//! A real model from a GGUF file, against transformers on the same dequantised weights.
//!
//! Runs when `SNUG_SMOLLM2` names the file (`.ci/smollm2` prints it); in CI it must.

use std::path::PathBuf;

use serde::Deserialize;
use snug::codec::Format;
use snug::store::reader::Store;

use crate::golden::run::{self, Run};
use crate::golden::{self, Chat, Words};
use crate::util;

/// `tests/golden/smollm2.json`.
#[derive(Deserialize)]
struct Expected {
    tensors: usize,
    chats: Vec<Chat>,
}

fn expected() -> Expected {
    golden::parse(&golden::root().join("smollm2.json"))
}

/// The GGUF file; `None` skips the test, aloud.
pub fn file() -> Option<PathBuf> {
    let named = std::env::var_os("SNUG_SMOLLM2").map(PathBuf::from);
    if named.is_none() {
        util::skip("SNUG_SMOLLM2 does not name the GGUF file; .ci/smollm2 prints it");
    }
    named
}

#[test]
fn a_packed_model_chats_as_in_transformers() {
    let Some(file) = file() else { return };
    let temp = tempfile::tempdir().unwrap();
    let packed = temp.path().join("smollm2.snug");
    let (store, count) = run::pack(&file, Format::Pairlut, &packed);
    assert!(count >= 200, "{count} weights packed");
    let words = Words::new(store.texts());
    drop(store);

    let chats = expected().chats;
    assert!(chats.len() >= 3);
    for chat in &chats {
        chat.check_text("smollm2", &words);
        let context = chat.ids.len() + chat.greedy.len();
        let mut run = Run::open(Store::open(&packed).unwrap(), context, 2);
        let (reply, rows) = run.greedy(&chat.ids, context, chat.greedy.len());
        for logits in &chat.logits {
            let difference = logits.difference(&rows[logits.position]);
            println!("token {}: {difference:.1e} of the largest logit", logits.position);
            assert!(difference < 1e-4, "token {}: {difference:e}", logits.position);
        }
        assert_eq!(reply, chat.greedy);
        assert!(reply.len() >= 48);
    }
}

#[test]
fn bf16_and_lossless_give_the_same_bits_for_256_tokens() {
    let Some(file) = file() else { return };
    let temp = tempfile::tempdir().unwrap();
    let [plain, packed] = ["plain.snug", "packed.snug"].map(|name| temp.path().join(name));
    let (store, count) = run::pack(&file, Format::Bf16, &plain);
    assert_eq!((count, store.entries().len()), (0, expected().tensors));
    let (_, count) = run::pack(&file, Format::Pairlut, &packed);
    assert!(count >= 200, "{count} weights packed");

    let prompt = &expected().chats[0].ids;
    let [a, b] = [&plain, &packed].map(|path| {
        let mut run = Run::open(Store::open(path).unwrap(), 256, 2);
        run.greedy(prompt, 256, 257 - prompt.len())
    });
    assert_eq!(a.1.len(), 256, "tokens whose logits are compared");
    if let Some(at) = run::first_difference(&a.1, &b.1) {
        panic!("{at}");
    }
    assert_eq!(a.0, b.0);
}
