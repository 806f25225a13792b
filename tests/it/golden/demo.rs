//! The built-in model.

use serde::Deserialize;
use sha2::{Digest, Sha256};
use snug::store::demo;

use super::run::Run;
use super::{Chat, Words, parse, root};

/// `tests/golden/demo.json`.
#[derive(Deserialize)]
struct Expected {
    tensors: usize,
    sha256_of_listing: String,
    chats: Vec<Chat>,
}

#[test]
fn the_built_in_model_says_what_it_says_in_transformers() {
    let want: Expected = parse(&root().join("demo.json"));
    let store = demo::open().unwrap();
    let words = Words::new(store.texts());
    let listing: String = store
        .entries()
        .iter()
        .map(|e| {
            let hash: String = e.sha256.unwrap().iter().map(|b| format!("{b:02x}")).collect();
            format!("{} {hash}\n", e.name)
        })
        .collect();
    let got: String = Sha256::digest(listing).iter().map(|b| format!("{b:02x}")).collect();
    assert_eq!((store.entries().len(), got), (want.tensors, want.sha256_of_listing), "the weights");

    assert!(want.chats.len() >= 3);
    for chat in &want.chats {
        chat.check_text("demo", &words);
        let context = chat.ids.len() + chat.greedy.len();
        let mut run = Run::open(demo::open().unwrap(), context, 2);
        let (reply, rows) = run.greedy(&chat.ids, context, chat.greedy.len());
        for logits in &chat.logits {
            let difference = logits.difference(&rows[logits.position]);
            println!("token {}: {difference:.1e} of the largest logit", logits.position);
            assert!(difference < 2e-5, "token {}: {difference:e}", logits.position);
        }
        assert_eq!(reply, chat.greedy);
        assert!(reply.len() >= 64);
    }
}
