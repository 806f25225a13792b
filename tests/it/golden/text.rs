//! Tokenizers and templates against those of transformers.

use snug::store::reader::Store;
use snug::text::StopSet;

use super::{Expected, Words, models, parse};

#[test]
fn text_and_chats_give_the_ids_of_the_reference() {
    let (mut texts, mut chats, mut refused) = (0, 0, 0);
    for (name, dir) in models() {
        let words = Words::new(Store::open(&dir).unwrap().texts());
        let expected: Expected = parse(&dir.join("expected.json"));
        for case in expected.texts {
            let got = words.tokenizer.encode_text(&case.text).unwrap();
            assert_eq!(got, case.ids, "{name}: {:?}", case.text);
            texts += 1;
        }
        for chat in expected.chats {
            chat.check_text(&name, &words);
            chats += 1;
            refused += u32::from(chat.error.is_some());
        }
    }
    assert!(texts > 100 && chats > 50 && refused > 0, "{texts} {chats} {refused}");
}

#[test]
fn end_tokens_are_the_union_of_all_files_with_their_origins() {
    let (_, dir) = models().into_iter().find(|(name, _)| name == "ends").unwrap();
    let store = Store::open(&dir).unwrap();
    let texts = store.texts();
    let words = Words::new(texts);
    let template = Some(&words.template);
    let generation = texts.generation_config.as_deref();
    let stops =
        StopSet::gather(Some(&texts.config), generation, &words.tokenizer, template).unwrap();
    let id = |token| words.tokenizer.id(token).unwrap();
    let (turn, text) = (id("<|eot_id|>"), id("<|end_of_text|>"));
    let got: Vec<(u32, Vec<&str>)> = stops.iter().map(|(id, from)| (id, from.to_vec())).collect();
    let everywhere =
        ["config.json", "generation_config.json", "tokenizer_config.json", "chat template"];
    assert_eq!(got, [(text, vec!["generation_config.json"]), (turn, everywhere.to_vec())]);
}
