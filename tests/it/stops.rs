//! Where replies end: the union of what a model's files and its template say.

use serde_json::{Map, Value, json};
use snug::error::Kind;
use snug::text::{ChatTemplate, StopSet, Tokenizer};

use crate::tokens::load_cached;

fn gather(
    config: Option<Value>,
    generation: Option<Value>,
    tokenizer: &Tokenizer,
    template: Option<&str>,
) -> Vec<(String, Vec<&'static str>)> {
    let config = config.map(|value| value.to_string());
    let generation = generation.map(|value| value.to_string());
    let template = template.map(|source| ChatTemplate::new(source, tokenizer).unwrap());
    let set =
        StopSet::gather(config.as_deref(), generation.as_deref(), tokenizer, template.as_ref());
    let set = set.unwrap();
    let entries: Vec<(u32, Vec<&'static str>)> =
        set.iter().map(|(id, origins)| (id, origins.to_vec())).collect();
    assert!(entries.iter().all(|(id, _)| set.contains(*id)));
    assert!(!set.contains(u32::MAX));
    assert_eq!(set.is_empty(), entries.is_empty());
    entries.into_iter().map(|(id, origins)| (tokenizer.token(id).unwrap(), origins)).collect()
}

const CHATML: &str =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}";

/// The turn ends with one token, the files name another as the end.
#[test]
fn qwen_style() {
    let tokenizer = load_cached("bytelevel");
    let id = |token| tokenizer.id(token).unwrap();
    let document_end = json!({"eos_token_id": id("<|endoftext|>")});
    let both = json!({"eos_token_id": [id("<|im_end|>"), id("<|endoftext|>")]});
    let files = ["config.json", "generation_config.json", "tokenizer_config.json", "chat template"];
    assert_eq!(
        gather(Some(document_end.clone()), Some(both), tokenizer, Some(CHATML)),
        [
            ("<|endoftext|>".to_owned(), vec![files[0], files[1]]),
            ("<|im_end|>".to_owned(), vec![files[1], files[2], files[3]]),
        ]
    );
    // Without generation_config.json and eos_token the template still knows.
    let (_, file, _) = crate::tokens::FAMILIES[0];
    let bare = Tokenizer::new(file, None).unwrap();
    assert_eq!(
        gather(Some(document_end), None, &bare, Some(CHATML)),
        [("<|endoftext|>".to_owned(), vec![files[0]]), ("<|im_end|>".to_owned(), vec![files[3]])]
    );
}

#[test]
fn llama3_style() {
    let tokenizer = load_cached("llama3");
    let id = |token| tokenizer.id(token).unwrap();
    let template = "{{ bos_token }}{% for m in messages %}{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' + m.content | trim + '<|eot_id|>' }}{% endfor %}";
    let config =
        json!({"eos_token_id": id("<|end_of_text|>"), "text_config": {"eos_token_id": null}});
    assert_eq!(
        gather(Some(config), Some(json!({})), tokenizer, Some(template)),
        [
            ("<|end_of_text|>".to_owned(), vec!["config.json"]),
            ("<|eot_id|>".to_owned(), vec!["tokenizer_config.json", "chat template"]),
        ]
    );
}

/// The last turn stays open, and the token that closes others is a plain added one that no file names.
#[test]
fn gemma_style() {
    let tokenizer = load_cached("bytelevel");
    let template = "{% for m in messages %}<think>{{ m.role }}\n{{ m.content | trim }}{% if not loop.last %}</think>\n{% endif %}{% endfor %}";
    assert_eq!(
        gather(None, None, tokenizer, Some(template)),
        [
            ("<|im_end|>".to_owned(), vec!["tokenizer_config.json"]),
            ("</think>".to_owned(), vec!["chat template"]),
        ]
    );
}

#[test]
fn templates_that_say_nothing() {
    let tokenizer = load_cached("bytelevel");
    let alone = [("<|im_end|>".to_owned(), vec!["tokenizer_config.json"])];
    for template in [
        "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}", // no control token
        "{% for m in messages %}{{ m.content }} STOP <|endoftext|>{% endfor %}", // not right after it
        "{{ raise_exception('never') }}",
        "<|endoftext|>",
    ] {
        assert_eq!(gather(None, None, tokenizer, Some(template)), alone, "{template}");
    }
    assert_eq!(gather(None, None, tokenizer, None), alone);
}

#[test]
fn malformed_files_are_refused_by_name() {
    let tokenizer = load_cached("bytelevel");
    for (config, generation, word) in [
        (Some("{"), None, "config.json"),
        (None, Some("[1"), "generation_config.json"),
        (Some("{\"eos_token_id\": -1}"), None, "config.json"),
        (None, Some("{\"eos_token_id\": [2, \"x\"]}"), "generation_config.json"),
        (None, Some("{\"eos_token_id\": 1.5}"), "generation_config.json"),
        (Some("{\"text_config\": {\"eos_token_id\": 4294967296}}"), None, "config.json"),
    ] {
        let e = StopSet::gather(config, generation, tokenizer, None).unwrap_err();
        assert!(
            e.kind == Kind::BadFile && e.why.starts_with(word),
            "{config:?} {generation:?}: {e}"
        );
    }
}

/// The token that ends a turn is found in text the model writes only as an id: quoting it does not stop.
#[test]
fn quoting_an_end_token_does_not_end_the_reply() {
    let tokenizer = load_cached("bytelevel");
    let template = ChatTemplate::new(CHATML, tokenizer).unwrap();
    let set = StopSet::gather(None, None, tokenizer, Some(&template)).unwrap();
    let message = json!({"role": "user", "content": "Explain <|im_end|>"});
    let rendered = template.render(&[message], false, &Map::new()).unwrap();
    let ids = rendered.encode(tokenizer).unwrap();
    assert_eq!(ids.iter().filter(|&&id| set.contains(id)).count(), 1);
    assert!(
        tokenizer.encode_text("Explain <|im_end|>").unwrap().iter().all(|&id| !set.contains(id))
    );
}
