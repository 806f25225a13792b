//! How inks look. State is never carried by colour alone: without colours, bold, underline and reverse remain.

use ratatui::style::{Color, Modifier, Style};

use super::rich::{Emphasis, Ink, Span};

/// A set of colours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Theme {
    /// The terminal's own 16 colours.
    #[default]
    Auto,
    /// For dark backgrounds.
    Dark,
    /// For light backgrounds.
    Light,
    /// No colours.
    Mono,
    /// Only strong differences.
    HighContrast,
}

impl Theme {
    /// All of them.
    pub const ALL: [Theme; 5] =
        [Theme::Auto, Theme::Dark, Theme::Light, Theme::Mono, Theme::HighContrast];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Theme::Auto => "auto",
            Theme::Dark => "dark",
            Theme::Light => "light",
            Theme::Mono => "mono",
            Theme::HighContrast => "high-contrast",
        }
    }

    /// By its name.
    pub fn named(name: &str) -> Option<Theme> {
        Theme::ALL.into_iter().find(|t| t.name() == name)
    }
}

/// How things look on this terminal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// The colours.
    pub theme: Theme,
    /// Borders and marks from ASCII only.
    pub ascii: bool,
}

impl Look {
    /// The style of a span.
    pub fn style(&self, span: &Span) -> Style {
        let mut style = self.ink(span.ink);
        let Emphasis { bold, italic, struck, reverse } = span.emphasis;
        for (on, modifier) in [
            (bold, Modifier::BOLD),
            (italic, Modifier::ITALIC),
            (struck, Modifier::CROSSED_OUT),
            (reverse, Modifier::REVERSED),
        ] {
            if on {
                style = style.add_modifier(modifier);
            }
        }
        style
    }

    fn ink(&self, ink: Ink) -> Style {
        let colour = |auto: Color, dark: u32, light: u32| match self.theme {
            Theme::Dark => Color::from_u32(dark),
            Theme::Light => Color::from_u32(light),
            _ => auto,
        };
        let plain = Style::new();
        match self.theme {
            Theme::Mono => return mono(ink),
            Theme::HighContrast => return contrast(ink),
            _ => {}
        }
        match ink {
            Ink::Text => plain,
            Ink::Heading => plain.fg(colour(Color::Cyan, 0x7dcfff, 0x00688b)),
            Ink::Code => plain.fg(colour(Color::Reset, 0xc8d0e0, 0x333333)),
            Ink::Keyword => plain.fg(colour(Color::Magenta, 0xbb9af7, 0x7d1fa8)),
            Ink::Literal => plain.fg(colour(Color::Green, 0x9ece6a, 0x2f6f1f)),
            Ink::Number => plain.fg(colour(Color::Yellow, 0xff9e64, 0x9a4f00)),
            Ink::Comment => plain.fg(colour(Color::DarkGray, 0x7a84a8, 0x6b6b6b)),
            Ink::Link => {
                plain.fg(colour(Color::Blue, 0x7aa2f7, 0x1f4fbf)).add_modifier(Modifier::UNDERLINED)
            }
            Ink::Dim => plain.fg(colour(Color::DarkGray, 0x7a84a8, 0x6b6b6b)),
            Ink::User => plain.fg(colour(Color::Green, 0x9ece6a, 0x2f6f1f)),
            Ink::Accent => plain.fg(colour(Color::Cyan, 0x7dcfff, 0x00688b)),
            Ink::Good => plain.fg(colour(Color::Green, 0x9ece6a, 0x2f6f1f)),
            Ink::Warn => plain.fg(colour(Color::Yellow, 0xe0af68, 0x8a5a00)),
            Ink::Error => plain.fg(colour(Color::Red, 0xf7768e, 0xb3123a)),
        }
    }

    /// A mark, or its ASCII stand-in.
    pub fn mark<'a>(&self, mark: &'a str) -> std::borrow::Cow<'a, str> {
        if !self.ascii || mark.is_ascii() {
            return mark.into();
        }
        mark.chars().map(|c| if c.is_ascii() { c } else { ascii(c) }).collect::<String>().into()
    }
}

/// What stands in for one of our own marks. Text of a model is never changed.
fn ascii(c: char) -> char {
    match c {
        '─' | '━' => '-',
        '│' | '▏' => '|',
        '┌' | '┐' | '└' | '┘' | '├' | '┤' | '┬' | '┴' | '┼' => '+',
        '█' => '#',
        '▓' => '=',
        '▒' => '%',
        '░' => ':',
        '·' | '•' => '.',
        '›' | '▸' => '>',
        '▾' => 'v',
        '✓' => '+',
        '✗' => 'x',
        '…' => '~',
        '▌' => '_',
        '▁' => '.',
        '▂' | '▃' => '-',
        '▄' | '▅' => '=',
        '▆' | '▇' => '#',
        '°' => ' ',
        '×' => 'x',
        'Δ' => 'd',
        c => c,
    }
}

fn mono(ink: Ink) -> Style {
    let plain = Style::new();
    match ink {
        Ink::Heading | Ink::Keyword | Ink::User | Ink::Accent | Ink::Error | Ink::Warn => {
            plain.add_modifier(Modifier::BOLD)
        }
        Ink::Link => plain.add_modifier(Modifier::UNDERLINED),
        _ => plain,
    }
}

fn contrast(ink: Ink) -> Style {
    let plain = Style::new();
    match ink {
        Ink::Error => plain.fg(Color::LightRed).add_modifier(Modifier::BOLD),
        Ink::Warn => plain.fg(Color::LightYellow).add_modifier(Modifier::BOLD),
        Ink::User | Ink::Good => plain.fg(Color::LightGreen).add_modifier(Modifier::BOLD),
        Ink::Accent | Ink::Heading => plain.fg(Color::LightCyan).add_modifier(Modifier::BOLD),
        Ink::Keyword => plain.add_modifier(Modifier::BOLD),
        Ink::Link => plain.add_modifier(Modifier::UNDERLINED),
        _ => plain,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INKS: [Ink; 14] = [
        Ink::Text,
        Ink::Heading,
        Ink::Code,
        Ink::Keyword,
        Ink::Literal,
        Ink::Number,
        Ink::Comment,
        Ink::Link,
        Ink::Dim,
        Ink::User,
        Ink::Accent,
        Ink::Good,
        Ink::Warn,
        Ink::Error,
    ];

    #[test]
    fn mono_has_no_colour_and_auto_only_the_terminals_own() {
        for ink in INKS {
            let style = |theme| Look { theme, ascii: false }.style(&Span::new("x", ink));
            let mono = style(Theme::Mono);
            assert_eq!((mono.fg, mono.bg), (None, None), "{ink:?}");
            assert!(!matches!(style(Theme::Auto).fg, Some(Color::Rgb(..))), "{ink:?}");
        }
    }

    #[test]
    fn every_mark_of_ours_has_an_ascii_form() {
        let look = Look { ascii: true, ..Look::default() };
        let ours = "─│┌┐└┘├┤┬┴█▓▒░·•›▸▾✓✗…▌▁▂▃▄▅▆▇°×Δ";
        assert!(look.mark(ours).is_ascii(), "{}", look.mark(ours));
        assert_eq!(Look::default().mark(ours), ours);
    }
}
