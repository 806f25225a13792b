//! Models whose weights are sound and whose texts are odd.

use serde_json::{Value, json};

use super::commands::source_dir;
use super::{Place, said};

/// A copy of the built-in model whose tokenizer_config.json was changed.
fn with_config(place: &Place, change: impl FnOnce(&mut Value)) -> String {
    let dir = source_dir(place, "odd");
    let path = place.path("odd/tokenizer_config.json");
    let mut config: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    change(&mut config);
    std::fs::write(path, config.to_string()).unwrap();
    let _ = std::fs::remove_file(place.path("odd/chat_template.jinja"));
    dir
}

/// Why a model cannot chat is said when somebody wants to chat, and only then; text without a template works.
#[test]
fn a_model_without_a_usable_template_says_why_and_still_continues_text() {
    let place = Place::new();
    let named = |names: &[&str]| {
        json!(names.iter().map(|n| json!({"name": n, "template": "T"})).collect::<Vec<_>>())
    };
    for (template, why) in [
        (Value::Null, "no chat template"),
        (named(&["tool_use", "r\x1bag"]), "tool_use, r␛ag, and none is called default"),
        (json!(7), "not a text"),
        (json!("{% for m in %}"), "line 1"),
    ] {
        let dir = with_config(&place, |config| config["chat_template"] = template);
        let device = place.device(&said("yes"), json!({}));
        place.run(&["run", &dir, "-d", &device, "hi"]).fails(10).says(why);
        place.run(&["template", &dir]).fails(10).says(why);
        let ran = place.run(&["run", &dir, "-d", &device, "--raw", "hi"]).ok();
        assert_eq!(ran.out(), "yes", "{why}");
        place.run(&["tokens", &dir, "hi"]).ok();
        place.run(&["inspect", &dir]).ok();
        if why != "line 1" {
            place.run(&["inspect", &dir, "--template"]).fails(10).says(why);
        }
        // A template from outside takes the place of the model's own.
        let given = place.write("t.jinja", "{{ messages[0].content }}");
        let ran = place.run(&["run", &dir, "-d", &device, "--chat-template", &given, "hi"]).ok();
        assert_eq!(ran.out(), "yes", "{why}");
    }
}

/// The tokenizer library panics on some files; what people see is the error, and nothing of the panic.
#[test]
fn a_tokenizer_that_panics_is_refused_in_three_lines() {
    let place = Place::new();
    let dir = source_dir(&place, "odd");
    let path = place.path("odd/tokenizer.json");
    let good: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let mut panics = 0;
    for (part, value) in [
        ("normalizer", json!({"type": "Precompiled", "precompiled_charsmap": "/wAAAA=="})),
        ("normalizer", json!({"type": "Prepend", "prepend": ""})),
        ("pre_tokenizer", json!({"type": "FixedLength", "length": 0})),
        (
            "post_processor",
            json!({"type": "TemplateProcessing", "pair": [], "special_tokens": {},
                "single": [{"SpecialToken": {"id": "X", "type_id": 0}}]}),
        ),
    ] {
        let mut file = good.clone();
        file[part] = value;
        std::fs::write(&path, file.to_string()).unwrap();
        for args in [
            &["run", &dir, "hello there"][..],
            &["tokens", &dir, "hello there"],
            &["template", &dir],
        ] {
            let ran = place.run(args).fails(10);
            assert_eq!(ran.stderr.lines().count(), 3, "{part}, {args:?}: {}", ran.stderr);
            panics += usize::from(ran.stderr.contains("library failed"));
        }
    }
    assert!(panics > 0, "the library has learnt better; find files that it still fails on");
}
