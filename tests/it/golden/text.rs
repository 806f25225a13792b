//! Tokenizers and templates against those of transformers.

use snug::store::reader::Store;

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
