//! A list to choose from, narrowed by typing.

use super::events::ModelRow;
use super::texts::size;
use crate::history::Summary;

/// What a choice is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A model to talk to.
    Model,
    /// A session to go on with.
    Session,
}

/// A line of the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// What choosing it gives.
    pub value: String,
    /// What is looked at when typing.
    pub label: String,
    /// What else is shown.
    pub detail: String,
    /// Whether it can be chosen.
    pub usable: bool,
}

/// A list to choose from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picker {
    /// What a choice is for.
    pub purpose: Purpose,
    /// What it says on top.
    pub title: String,
    /// What was typed.
    pub filter: String,
    choices: Vec<Choice>,
    selected: usize,
}

impl Picker {
    /// A list of models; the cursor is on the one that is loaded.
    pub fn models(rows: &[ModelRow], current: Option<&str>) -> Picker {
        let choice = |row: &ModelRow| Choice {
            value: row.reference.clone(),
            label: row.reference.clone(),
            detail: model_detail(row),
            usable: row.error.is_none(),
        };
        let selected = rows.iter().position(|r| Some(r.reference.as_str()) == current);
        Picker {
            purpose: Purpose::Model,
            title: "choose a model".into(),
            filter: String::new(),
            choices: rows.iter().map(choice).collect(),
            selected: selected.unwrap_or(0),
        }
    }

    /// A list of sessions.
    pub fn sessions(rows: &[Summary]) -> Picker {
        let choice = |row: &Summary| Choice {
            value: row.id.clone(),
            label: format!("{}  {}", row.id, row.name),
            detail: format!("{} messages · {}", row.turns, row.model),
            usable: true,
        };
        Picker {
            purpose: Purpose::Session,
            title: "choose a conversation".into(),
            filter: String::new(),
            choices: rows.iter().map(choice).collect(),
            selected: 0,
        }
    }

    /// The lines that match what was typed.
    pub fn matching(&self) -> Vec<&Choice> {
        self.choices.iter().filter(|c| matches(&self.filter, &c.label)).collect()
    }

    /// The number of the selected one of these.
    pub fn selected(&self) -> usize {
        self.selected.min(self.matching().len().saturating_sub(1))
    }

    /// The selected line.
    pub fn choice(&self) -> Option<&Choice> {
        self.matching().get(self.selected()).copied()
    }

    /// Moves the selection.
    pub fn go(&mut self, by: isize) {
        let last = self.matching().len().saturating_sub(1);
        self.selected = self.selected().saturating_add_signed(by).min(last);
    }

    /// Types into the filter.
    pub fn type_text(&mut self, text: &str) {
        self.filter.extend(text.chars().filter(|c| !c.is_control()));
        self.selected = 0;
    }

    /// Takes back the last letter. False when there is none.
    pub fn backspace(&mut self) -> bool {
        self.selected = 0;
        self.filter.pop().is_some()
    }
}

fn model_detail(row: &ModelRow) -> String {
    if let Some(e) = &row.error {
        return format!("cannot be used: {e}");
    }
    let fit = match (row.needs, row.free) {
        (Some((bytes, context)), Some(free)) if bytes <= free => {
            format!(" · ✓ fits with a context of {context}")
        }
        (Some((bytes, context)), Some(free)) => {
            let short = size(bytes - free);
            format!(" · ✗ does not fit with a context of {context}: {short} too many")
        }
        _ => String::new(),
    };
    format!("{} · {}{fit}", row.variant, size(row.bytes))
}

/// Whether the letters of `wanted` occur in `text` in this order, without regard to case.
pub fn matches(wanted: &str, text: &str) -> bool {
    let mut text = text.chars().flat_map(char::to_lowercase);
    wanted.chars().flat_map(char::to_lowercase).all(|w| w == ' ' || text.any(|c| c == w))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typing_narrows_and_the_selection_stays_inside() {
        let row = |name: &str, needs, error| ModelRow {
            reference: name.into(),
            variant: "lossless".into(),
            bytes: 1000,
            needs: Some((needs, 4096)),
            free: Some(5000),
            error,
        };
        let rows = [
            row("demo", 2000, None),
            row("qwen3-8b", 9000, None),
            row("bad", 0, Some("it is cut short".to_owned())),
        ];
        let mut p = Picker::models(&rows, Some("qwen3-8b"));
        assert_eq!(p.choice().unwrap().value, "qwen3-8b");
        assert!(p.choice().unwrap().detail.contains("✗ does not fit with a context of 4096"));
        p.go(5);
        assert!(!p.choice().unwrap().usable);
        p.type_text("DM");
        assert_eq!(p.choice().unwrap().value, "demo");
        p.type_text("zzz");
        assert!(p.choice().is_none());
        p.go(1);
        p.go(-9);
        assert!(p.backspace() && p.backspace() && p.backspace());
        assert_eq!(p.matching().len(), 1);
    }
}
