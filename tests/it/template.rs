//! Chat templates against Hugging Face's own environment, and against hostile ones.

use serde_json::{Map, Value, json};
use snug::error::{Error, Kind};
use snug::num::rng::Stream;
use snug::text::{ChatTemplate, Rendered, Tokenizer};

use crate::tokens::load_cached;

fn clock() -> jiff::civil::DateTime {
    jiff::civil::datetime(2026, 3, 7, 9, 5, 3, 45_678_000)
}

fn compile(source: &str, tokenizer: &Tokenizer) -> Result<ChatTemplate, Error> {
    Ok(ChatTemplate::new(source, tokenizer)?.with_clock(clock()))
}

/// Renders with the byte-level tokenizer.
fn render(
    source: &str,
    messages: &[Value],
    variables: &Map<String, Value>,
) -> Result<Rendered, Error> {
    compile(source, load_cached("bytelevel"))?.render(messages, true, variables)
}

fn golden(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

#[test]
fn snippets_equal_the_reference() {
    let golden = golden(include_str!("../golden/snippets.json"));
    let context = golden["context"].as_object().unwrap();
    let mut differences = Vec::new();
    for case in golden["snippets"].as_array().unwrap() {
        let source = case[0].as_str().unwrap();
        let got = render(source, &[], context).map(|rendered| rendered.text);
        let same = match (&got, &case[1]) {
            (Ok(text), Value::String(want)) => text == want,
            (Err(_), Value::Object(_)) => true,
            _ => false,
        };
        if !same {
            differences.push(format!("{source}\n  want {}\n  got  {got:?}", case[1]));
        }
    }
    assert!(differences.is_empty(), "{} differ:\n{}", differences.len(), differences.join("\n"));
}

#[test]
fn chats_equal_the_reference() {
    let golden = golden(include_str!("../golden/templates.json"));
    let mut differences = Vec::new();
    let (mut rendered, mut refused, mut encoded) = (0, 0, 0);
    for entry in golden["templates"].as_array().unwrap() {
        let name = entry["name"].as_str().unwrap();
        let tokenizer = load_cached(entry["tokenizer"].as_str().unwrap());
        let template = compile(entry["template"].as_str().unwrap(), tokenizer).unwrap();
        for case in entry["cases"].as_array().unwrap() {
            let messages = golden["chats"][case["chat"].as_str().unwrap()].as_array().unwrap();
            let variables = case["variables"].as_object().unwrap();
            let got = template.render(messages, case["prompt"] == true, variables);
            let label = format!("{name} {} {}", case["chat"], case["variables"]);
            let Some(want) = case.get("text") else {
                let e = got.expect_err(&label);
                let raised = case["error"] == "TemplateError";
                assert_eq!(e.kind == Kind::Usage, raised, "{label}: {e}");
                refused += 1;
                continue;
            };
            match got {
                Ok(got) if got.text == *want => {
                    rendered += 1;
                    let Some(want) = case.get("ids") else { continue };
                    let want: Vec<u32> = serde_json::from_value(want.clone()).unwrap();
                    let ids = got.encode(tokenizer).unwrap();
                    assert_eq!(ids, want, "{label}: {:?} {:?}", got.text, got.authors);
                    encoded += 1;
                }
                Ok(got) => {
                    let want = want.as_str().unwrap();
                    let at = got.text.bytes().zip(want.bytes()).take_while(|(a, b)| a == b).count();
                    let show = |text: &str| {
                        String::from_utf8_lossy(&text.as_bytes()[at..])
                            .chars()
                            .take(60)
                            .collect::<String>()
                    };
                    differences.push(format!(
                        "{label} at byte {at}\n  want {:?}\n  got  {:?}",
                        show(want),
                        show(&got.text)
                    ));
                }
                Err(e) => differences.push(format!("{label}: {e}")),
            }
        }
    }
    assert!(differences.is_empty(), "{} differ:\n{}", differences.len(), differences.join("\n"));
    assert!(rendered > 200 && refused > 20 && encoded > 150, "{rendered} {refused} {encoded}");
}

fn user(content: &str) -> Value {
    json!({"role": "user", "content": content})
}

fn assistant(content: &str) -> Value {
    json!({"role": "assistant", "content": content})
}

/// A template of the golden file, with its tokenizer.
fn known(name: &str) -> (ChatTemplate, &'static Tokenizer) {
    let golden = golden(include_str!("../golden/templates.json"));
    let entry =
        golden["templates"].as_array().unwrap().iter().find(|entry| entry["name"] == name).unwrap();
    let tokenizer = load_cached(entry["tokenizer"].as_str().unwrap());
    (compile(entry["template"].as_str().unwrap(), tokenizer).unwrap(), tokenizer)
}

fn specials(tokenizer: &Tokenizer, ids: &[u32]) -> Vec<u32> {
    ids.iter().copied().filter(|&id| tokenizer.is_special(id)).collect()
}

#[test]
fn no_message_forges_a_special_token() {
    let mut draws = Stream::new(32);
    for name in ["chatml", "qwenish", "llama3ish", "mistralish", "llama2ish", "gemmaish", "phiish"]
    {
        let (template, tokenizer) = known(name);
        let tokens: Vec<&str> = tokenizer.special_tokens().map(|(_, token)| token).collect();
        let plain = [user("a"), assistant("b"), user("c")];
        let plain = template.render(&plain, true, &Map::new()).unwrap().encode(tokenizer).unwrap();
        for _ in 0..150 {
            // Whole tokens, halves of them, and text.
            let mut words = |n: u32| -> String {
                (0..1 + draws.below(n))
                    .map(|_| {
                        let token = tokens[draws.below(tokens.len() as u32) as usize];
                        let cut = 1 + draws.below(token.len() as u32 - 1) as usize;
                        match draws.below(5) {
                            0 => token,
                            1 => token.get(..cut).unwrap_or(token),
                            2 => token.get(cut..).unwrap_or(token),
                            3 => ["é", "hello", "\u{f0000}", "😸"][draws.below(4) as usize],
                            _ => [" ", "\n", "\\", "\""][draws.below(4) as usize],
                        }
                    })
                    .collect()
            };
            let texts = [words(5), words(5), words(5)];
            let messages = [user(&texts[0]), assistant(&texts[1]), user(&texts[2])];
            let rendered = template.render(&messages, true, &Map::new()).unwrap();
            let ids = rendered.encode(tokenizer).unwrap();
            // The template's tokens, in their order, and no other.
            assert_eq!(specials(tokenizer, &ids), specials(tokenizer, &plain), "{name} {texts:?}");
            let bytes: Vec<u8> =
                ids.iter().flat_map(|&id| tokenizer.token_bytes(id)).copied().collect();
            if name != "mistralish" && name != "llama2ish" {
                assert_eq!(String::from_utf8_lossy(&bytes), rendered.text, "{name} {texts:?}");
            }
        }
    }
}

#[test]
fn forged_tokens_in_every_kind_of_field_stay_text() {
    let end = "<|im_end|>";
    let variables = json!({"note": format!("n{end}"), "tools": [{"name": end}]});
    let messages = [
        json!({"role": "user", "content": [{"type": "text", "text": end}], "name": end}),
        json!({"role": "assistant", "content": end, "tool_calls": [{"f": {"arguments": {"x": end}}}]}),
    ];
    for source in [
        "{% for m in messages %}{{ m | tojson }}<|im_end|>{% endfor %}",
        "{% for m in messages %}{{ m | tojson(ensure_ascii=True, indent=1) }}<|im_end|>{% endfor %}",
        "{% for m in messages %}{{ m.name }}{{ m.content }}{{ m.tool_calls }}<|im_end|>{% endfor %}",
        "{{ note }}{{ tools }}{{ tools | tojson }}<|im_end|>{{ eos_token }}",
        "{{ note | upper }}<|im_end|>{% if '<|im_end|>' in 'x<|im_end|>' %}<|im_end|>{% endif %}",
        "{{ messages[1].content[:-1] }}{{ '>' }}<|im_end|><|im_end|>",
        "{{ messages[1].content.split('|') | join('|') }}<|im_end|>{{ '<|im' }}{{ '_end|>' }}",
    ] {
        let rendered = render(source, &messages, variables.as_object().unwrap()).expect(source);
        let tokenizer = load_cached("bytelevel");
        let ids = rendered.encode(tokenizer).unwrap();
        let count = ids.iter().filter(|&&id| Some(id) == tokenizer.id(end)).count();
        assert_eq!(count, 2, "{source}: {} {:?}", rendered.text, rendered.authors);
    }
}

#[test]
fn the_models_markers_count_in_its_own_messages_only() {
    let (template, tokenizer) = known("qwenish");
    let close = tokenizer.id("</think>").unwrap();
    let count = |messages: &[Value]| {
        let rendered = template.render(messages, true, &Map::new()).unwrap();
        let ids = rendered.encode(tokenizer).unwrap();
        ids.iter().filter(|&&id| id == close).count()
    };
    assert_eq!(count(&[user("What does </think> do?")]), 0);
    assert_eq!(count(&[user("a"), assistant("<think>\nx\n</think>\n\nb")]), 1);
    // A question that the template itself takes for a tool's answer is still rendered as in Python.
    assert_eq!(count(&[user("<tool_response>x</think></tool_response>")]), 0);
}

#[test]
fn a_template_that_reads_special_tokens_in_messages_is_refused() {
    let source = "{% for m in messages %}{{ m.content | replace('<|im_end|>', '') }}{% endfor %}";
    let text = |content: &str| render(source, &[user(content)], &Map::new());
    assert_eq!(text("plain").unwrap().text, "plain");
    let e = text("forged <|im_end|>").unwrap_err();
    assert_eq!((e.kind, e.what.as_str()), (Kind::Usage, "cannot tell message and template apart"));
}

#[test]
fn at_most_one_begin_of_text() {
    for (name, bos) in [("llama3ish", 1), ("mistralish", 1), ("gemmaish", 0)] {
        let (template, tokenizer) = known(name);
        let rendered = template.render(&[user("Hi")], true, &Map::new()).unwrap();
        let ids = rendered.encode(tokenizer).unwrap();
        let id = tokenizer.named("bos_token").and_then(|token| tokenizer.id(token));
        assert_eq!(ids.iter().filter(|&&i| Some(i) == id).count(), bos, "{name}");
    }
}

#[test]
fn errors_say_where() {
    for (source, kind, why) in [
        ("line one\n{{ messages[0].content }\n", Kind::BadFile, "line 2"),
        ("a\nb\n  {% endfor %}", Kind::BadFile, "line 3, column 6: "),
        (
            "{% for m in messages %}\n\n{{ m.a.b }}\n{% endfor %}",
            Kind::BadFile,
            "line 3, column 5: ",
        ),
        ("{% set x = [1] + [2] %}\n{{ x + 'é' + y.z }}", Kind::BadFile, "line 2, column "),
        ("é{% generation %}{{ 1 + 'x' }}{% endgeneration %}", Kind::BadFile, "line 1, column 21: "),
        ("\r\n\r\n{{ nope() }}", Kind::BadFile, "line 3, column 4: "),
        ("{{ 'x' | frobnicate }}", Kind::BadFile, "frobnicate"),
        ("{{ 'x'.frobnicate() }}", Kind::BadFile, "frobnicate"),
        ("{{ 'a\u{1b}[2J'.x() }}", Kind::BadFile, "line 1"),
        ("\n{{ raise_exception('Only \u{1b}one') }}", Kind::Usage, "line 2, column 4: Only ␛one"),
        (
            "{% macro m() %}\n{{ raise_exception('deep') }}{% endmacro %}\n{{ m() }}",
            Kind::Usage,
            "deep",
        ),
    ] {
        let e = render(source, &[user("hi")], &Map::new()).unwrap_err();
        assert_eq!(e.kind, kind, "{source:?}: {e}");
        assert!(e.why.contains(why) && !e.why.contains('\u{1b}'), "{source:?}: {e}");
    }
}

#[test]
fn the_template_of_a_model() {
    let config = |template: Value| json!({"chat_template": template}).to_string();
    let named =
        json!([{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]);
    for (file, config, want) in [
        (Some("J"), Some(config(json!("C"))), Ok("J")),
        (None, Some(config(json!("C"))), Ok("C")),
        (None, Some(config(named)), Ok("D")),
        (None, Some(config(json!([{"name": "tool_use", "template": "T"}]))), Err("called default")),
        (None, Some(config(json!(3))), Err("not a text")),
        (None, Some("{}".to_owned()), Err("no chat template")),
        (None, None, Err("no chat template")),
        (None, Some("{".to_owned()), Err("tokenizer_config.json")),
    ] {
        let got = snug::text::template::find(file, config.as_deref());
        match want {
            Ok(want) => assert_eq!(got.unwrap(), want),
            Err(word) => {
                let e = got.unwrap_err();
                assert!(e.kind == Kind::BadFile && e.why.contains(word), "{e}");
            }
        }
    }
    let e = snug::text::template::find(None, None).unwrap_err();
    assert!(e.todo.contains("--raw") && e.todo.contains("--chat-template"), "{e}");
}

#[test]
fn variables_win_over_the_tokenizers_names_and_the_clock_runs() {
    let variables = json!({"bos_token": "<mine>"});
    let got = render("{{ bos_token }}{{ eos_token }}", &[], variables.as_object().unwrap());
    assert_eq!(got.unwrap().text, "<mine><|im_end|>");
    let template = ChatTemplate::new("{{ strftime_now('%Y') }}", load_cached("bytelevel")).unwrap();
    let year: i64 = template.render(&[], false, &Map::new()).unwrap().text.parse().unwrap();
    assert!(year >= 2026, "{year}");
}

/// Templates that would not end, or would fill memory or stack, or are no templates; and a word of the error.
pub fn hostile() -> Vec<(String, &'static str)> {
    let nested = |n: usize, open: &str, close: &str| {
        format!("{{{{ {}1{} }}}}", open.repeat(n), close.repeat(n))
    };
    let chain = |n: usize, link: &str| format!("{{{{ 1{} }}}}", link.repeat(n));
    // A loop that would make something grow and grow.
    let grow = |set: &str| {
        "{% set n = namespace(s=[1], t='x') %}{% for i in range(99999) %}{% set ".to_owned()
            + set
            + " %}{% endfor %}"
    };
    let endless = "come to an end";
    let loops = "{% for a in range(99999) %}{% for b in range(99) %}".to_owned();
    let mut cases = vec![
        ("{% for a in range(99999) %}".repeat(5) + &"{% endfor %}".repeat(5), endless),
        (loops + &"a".repeat(99) + "{% endfor %}{% endfor %}", endless),
        (grow("n.t = n.t ~ n.t"), endless),
        (grow("n.t = n.t + n.t"), endless),
        (grow("n.s = n.s + n.s"), "holds too much"),
        (grow("n.s = [n.s]"), "nested too deep"),
        (grow("n.s = n.s, 1"), "nested too deep"),
        (grow("n.s = {'a': n.s}"), "nested too deep"),
        (grow("n.s = dict(a=n.s)"), "nested too deep"),
        (grow("n.s = n.s | batch(1)"), "nested too deep"),
        (grow("n.s = n.s[0:]"), endless),
        (grow("n.s = n.s | reverse"), endless),
        (grow("n.s = [n.s, n.s]"), ""),
        (grow("n.s = (n.s, n.s)"), ""),
        (grow("n.s = {'a': n.s, 'b': n.s}"), ""),
        (grow("n.s = [n.s] * 9"), "cannot be repeated"),
        (grow("n.s = 9 * n.s"), "cannot be repeated"),
        (grow("n.s = [n.s, n.s] | sum(start=[])"), "not a number"),
        (grow("n.s = namespace(a=n)"), "part of a value"),
        (grow("n.s = n"), "part of a value"),
        (grow("x %}{{ n.t * 999 }}{% endset"), endless),
    ];
    let small = [
        ("{{ 'x' * 99999999 }}", endless),
        ("{{ 'x' * 999999999999 }}", ""),
        ("{{ 'x'.center(99999999999) }}", endless),
        ("{{ '\\t'.expandtabs(99999999999) }}", endless),
        ("{{ '%999999999d' % 1 }}", endless),
        ("{{ '{:>999999999}'.format(1) }}", "too wide"),
        ("{{ '{:>{}}'.format(1, 999999999) }}", "field"),
        ("{{ strftime_now('%999999999Y') | length * 9 ** 99 }}", ""),
        ("{{ ('x' * 9999).replace('x', 'y' * 99999) }}", endless),
        ("{{ range(100001) }}", "range"),
        ("{{ 9 ** 9 ** 9 ** 9 }}", ""),
        ("{{ [1] | tojson(indent=99999999999) }}{{ x.y }}", "undefined"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "recursion"),
        ("{% macro m(x) %}{{ m([x, x]) }}{% endmacro %}{{ m(1) }}", ""),
        ("{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}", "recursion"),
        ("{% block b %}{{ self.b() }}{% endblock %}", "recursion"),
    ];
    cases.extend(small.map(|(source, word)| (source.to_owned(), word)));
    cases.extend([
        (nested(900, "(", ")"), "recursion"),
        (nested(90_000, "[", "]"), "too long"),
        (nested(400, "{1:", "}"), "recursion"),
        ("{% if 1 %}".repeat(6_000), "recursion"),
        ("{% for x in y %}\n".repeat(20_000), "recursion"),
        (format!("{{{{ x{} }}}}", ".a".repeat(900)), "undefined"),
        (chain(60_000, "[0:]"), "too long"),
        (chain(60_000, " + y.z"), "too long"),
        (chain(400, " + y.z"), "undefined"),
        (chain(300, " if y.z else 1"), "undefined"),
        (chain(400, "|nothing"), "nothing"),
        ("x".repeat(2 << 20), "longer than"),
        ("x".repeat(70_000), "that long"),
        ("{#\n".repeat(90_000), "that long"),
        ("{{".repeat(20_000), ""),
        ("{#".repeat(20_000), ""),
        ("{{ '".repeat(10_000), ""),
    ]);
    // A value that unfolds to 2^50 others, built line by line, and everything that walks values.
    let unfolding = "{% set x = [1] %}{% set y = [1] %}".to_owned()
        + &"{% set x = [x, x] %}{% set y = [y, y] %}".repeat(50);
    for walk in ["x", "x == y", "x ~ y", "x | tojson", "[x, y] | sort", "{x: 1}"] {
        cases.push((format!("{unfolding}{{{{ {walk} }}}}"), ""));
    }
    cases
}

#[test]
fn hostile_templates_end_in_words() {
    for (source, word) in hostile() {
        let start: String = source.chars().take(90).collect();
        let e = render(&source, &[user("hi")], &Map::new()).expect_err(&start);
        assert_eq!(e.kind, Kind::BadFile, "{start}: {e}");
        assert!(e.why.contains(word), "{start}: {e}");
        assert!(
            e.why.contains("line ") || ["longer than", "that long"].contains(&word),
            "{start}: {e}"
        );
    }
}

#[test]
fn long_chats_are_within_the_budget() {
    let text = "The quick brown fox, <b>é</b> 漢字. ".repeat(400);
    let messages: Vec<Value> = (0..300)
        .map(|i| if i % 2 == 0 { user(&text) } else { assistant(&text) })
        .chain([user("last")])
        .collect();
    let bytes: usize = messages.len() * text.len();
    for name in ["chatml", "qwenish", "llama3ish", "mistralish", "llama2ish", "gemmaish", "jsonish"]
    {
        let (template, _) = known(name);
        let got = template.render(&messages, true, &Map::new()).unwrap();
        assert!(got.text.len() > bytes * 9 / 10, "{name}: {}", got.text.len());
    }
}
