//! Chat templates against Hugging Face's own environment, and against hostile ones.

use serde_json::{Map, Value};
use snug::error::{Error, Kind};
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
