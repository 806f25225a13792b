//! Logits and greedy tokens of the tiny models.

use snug::codec::Format;
use snug::store::reader::Store;

use super::run::{Run, first_difference, pack};
use super::{Expected, models, parse};

/// The reference computes in float32 too, in other orders of summation; a few units of 1e-6 is what to expect.
const TOLERANCE: f32 = 2e-5;

#[test]
fn logits_and_greedy_tokens_are_those_of_transformers() {
    let mut worst = (0.0, String::new());
    for (name, dir) in models() {
        let want: Expected = parse(&dir.join("expected.json"));
        let context = want.prompt.len() + want.greedy.len();
        let mut run = Run::open(Store::open(&dir).unwrap(), context, 2);
        let (reply, rows) = run.greedy(&want.prompt, context, want.greedy.len());
        assert!(
            want.logits.iter().any(|l| l.position == rows.len() - 1),
            "the last step has logits"
        );
        for logits in &want.logits {
            let difference = logits.difference(&rows[logits.position]);
            let at = format!("{name}, token {}: {difference:.1e}", logits.position);
            assert!(difference < TOLERANCE, "{at}");
            if difference > worst.0 {
                worst = (difference, at);
            }
        }
        assert_eq!(reply, want.greedy, "{name}");
        assert!(reply.len() >= 64);
    }
    println!("largest difference, relative to the largest logit: {}", worst.1);
}

#[test]
fn packed_models_and_prompts_cut_anywhere_give_the_same_bits() {
    let temp = tempfile::tempdir().unwrap();
    let (mut packed, mut all) = (0, 0);
    for (name, dir) in models() {
        let want: Expected = parse(&dir.join("expected.json"));
        let context = want.prompt.len() + want.greedy.len();
        let plain = Store::open(&dir).unwrap();
        assert!(plain.entries().iter().all(|e| e.format == Format::Bf16));
        let (reply, rows) = Run::open(plain, context, 1).greedy(&want.prompt, context, 64);

        let file = temp.path().join(format!("{name}.snug"));
        let (store, count) = pack(&dir, Format::Pairlut, &file);
        assert!(count > 0, "{name}: nothing is packed");
        packed += count;
        all += store.entries().len();
        drop(store);

        for (chunk, threads) in [(context, 2), (1, 1), (7, 3), (16, 2)] {
            for path in [&dir, &file] {
                let mut run = Run::open(Store::open(path).unwrap(), context, threads);
                let (other_reply, other) = run.greedy(&want.prompt, chunk, 64);
                if let Some(at) = first_difference(&rows, &other) {
                    panic!("{}, prompt in {chunk}s on {threads} threads: {at}", path.display());
                }
                assert_eq!(reply, other_reply, "{name}");
            }
        }
    }
    println!("{packed} of {all} weights packed");
}
