//! Colours for code, line by line: what was read stays read, so a block that grows costs only its new lines.
//!
//! Not a parser: comments, literals, numbers and the words of a language are what helps a reader most, and they can be
//! told apart with two states.

use super::rich::{Ink, Row, Span};

/// What distinguishes a language.
struct Language {
    names: &'static [&'static str],
    words: &'static str,
    /// Starts a comment to the end of the line.
    comments: &'static [&'static str],
    /// Opens and closes a comment over lines.
    block: Option<(&'static str, &'static str)>,
    /// Quotes of literals; three in a row open a literal over lines when `triple`.
    quotes: &'static str,
    triple: bool,
}

const C_BLOCK: Option<(&str, &str)> = Some(("/*", "*/"));

static LANGUAGES: &[Language] = &[
    Language {
        names: &["rust", "rs"],
        words: "as async await break const continue crate dyn else enum extern false fn for if impl in let loop match mod move mut pub ref return self Self static struct super trait true type unsafe use where while",
        comments: &["//"],
        block: C_BLOCK,
        quotes: "\"",
        triple: false,
    },
    Language {
        names: &["python", "py", "python3"],
        words: "and as assert async await break class continue def del elif else except False finally for from global if import in is lambda None nonlocal not or pass raise return True try while with yield match case self",
        comments: &["#"],
        block: None,
        quotes: "\"'",
        triple: true,
    },
    Language {
        names: &["c", "cpp", "c++", "cc", "h", "hpp", "cuda", "cu", "cuh", "objc"],
        words: "alignas auto bool break case catch char class const constexpr continue default delete do double else enum explicit extern false float for goto if inline int long namespace new nullptr operator private protected public register return short signed sizeof static struct switch template this throw true try typedef typename union unsigned using virtual void volatile while __global__ __device__ __shared__ #include #define #if #ifdef #ifndef #endif #pragma",
        comments: &["//"],
        block: C_BLOCK,
        quotes: "\"'",
        triple: false,
    },
    Language {
        names: &["javascript", "js", "jsx", "typescript", "ts", "tsx"],
        words: "abstract any as async await boolean break case catch class const continue default delete do else enum export extends false finally for from function if implements import in instanceof interface let new null number of private public readonly return static string super switch this throw true try type typeof undefined var void while yield",
        comments: &["//"],
        block: C_BLOCK,
        quotes: "\"'`",
        triple: false,
    },
    Language {
        names: &["go", "golang"],
        words: "break case chan const continue default defer else fallthrough false for func go goto if import interface iota map nil package range return select struct switch true type var",
        comments: &["//"],
        block: C_BLOCK,
        quotes: "\"'`",
        triple: false,
    },
    Language {
        names: &["java", "kotlin", "kt", "scala", "swift", "csharp", "cs", "c#"],
        words: "abstract as boolean break byte case catch char class companion const continue data def default do double else enum extends false final finally float for fun func guard if implements import in init int interface internal is let long namespace new nil null object open override package private protected public return sealed short static string struct super switch this throw throws true try using val var void when where while",
        comments: &["//"],
        block: C_BLOCK,
        quotes: "\"'",
        triple: true,
    },
    Language {
        names: &["bash", "sh", "shell", "zsh", "fish", "console", "dockerfile", "makefile"],
        words: "case cd do done echo elif else esac exit export fi for function if in local read return set shift source then trap unset until while FROM RUN COPY ENV CMD",
        comments: &["#"],
        block: None,
        quotes: "\"'",
        triple: false,
    },
    Language {
        names: &["json", "jsonc", "json5"],
        words: "true false null",
        comments: &["//"],
        block: C_BLOCK,
        quotes: "\"",
        triple: false,
    },
    Language {
        names: &["toml", "yaml", "yml", "ini"],
        words: "true false null yes no on off",
        comments: &["#"],
        block: None,
        quotes: "\"'",
        triple: true,
    },
    Language {
        names: &["sql", "sqlite", "postgres", "mysql"],
        words: "add all alter and as asc between by case create delete desc distinct drop else end exists foreign from group having in index inner insert into is join key left like limit not null on or order outer primary references right select set table then union unique update values view when where with ADD ALL ALTER AND AS ASC BETWEEN BY CASE CREATE DELETE DESC DISTINCT DROP ELSE END EXISTS FOREIGN FROM GROUP HAVING IN INDEX INNER INSERT INTO IS JOIN KEY LEFT LIKE LIMIT NOT NULL ON OR ORDER OUTER PRIMARY REFERENCES RIGHT SELECT SET TABLE THEN UNION UNIQUE UPDATE VALUES VIEW WHEN WHERE WITH",
        comments: &["--"],
        block: C_BLOCK,
        quotes: "'",
        triple: false,
    },
    Language {
        names: &["lua", "haskell", "hs"],
        words: "and break case class data deriving do else elseif end false for function goto if import in instance let local module newtype nil not of or repeat return then true type until where while",
        comments: &["--"],
        block: None,
        quotes: "\"'",
        triple: false,
    },
    Language {
        names: &["html", "xml", "svg", "vue"],
        words: "",
        comments: &[],
        block: Some(("<!--", "-->")),
        quotes: "\"",
        triple: false,
    },
    Language {
        names: &["css", "scss", "less"],
        words: "important inherit initial none auto",
        comments: &[],
        block: C_BLOCK,
        quotes: "\"'",
        triple: false,
    },
];

/// Colours the lines of one block of code, in order.
#[derive(Clone, Debug, Default)]
pub struct Highlighter {
    kind: Kind,
    /// What closes the comment or literal that the last line left open, and its ink.
    open: Option<(&'static str, Ink)>,
}

#[derive(Clone, Copy, Debug, Default)]
enum Kind {
    #[default]
    Plain,
    Diff,
    Known(usize),
}

impl Highlighter {
    /// For the language that a fence names.
    pub fn new(info: &str) -> Highlighter {
        let name = info.split([' ', ',', '{']).next().unwrap_or_default().to_lowercase();
        let known = LANGUAGES.iter().position(|l| l.names.contains(&name.as_str()));
        let kind = match known {
            _ if name == "diff" || name == "patch" => Kind::Diff,
            Some(index) => Kind::Known(index),
            None => Kind::Plain,
        };
        Highlighter { kind, open: None }
    }

    /// The next line, without its end.
    pub fn line(&mut self, line: &str) -> Row {
        match self.kind {
            Kind::Plain => vec![Span::new(line, Ink::Code)],
            Kind::Diff => vec![Span::new(line, diff_ink(line))],
            Kind::Known(index) => self.code(line, &LANGUAGES[index]),
        }
    }

    fn code(&mut self, line: &str, language: &Language) -> Row {
        let mut row = Row::new();
        let mut rest = line;
        while !rest.is_empty() {
            let (length, ink) = match self.open {
                Some((close, ink)) => match rest.find(close) {
                    Some(at) => {
                        self.open = None;
                        (at + close.len(), ink)
                    }
                    None => (rest.len(), ink),
                },
                None => self.token(rest, language),
            };
            let (token, after) = rest.split_at(length);
            match row.last_mut() {
                Some(last) if last.ink == ink => last.text.push_str(token),
                _ => row.push(Span::new(token, ink)),
            }
            rest = after;
        }
        row
    }

    /// Length and ink of the token at the start of `rest`, which is not empty.
    fn token(&mut self, rest: &str, language: &Language) -> (usize, Ink) {
        if language.comments.iter().any(|c| rest.starts_with(c)) {
            return (rest.len(), Ink::Comment);
        }
        if let Some((open, close)) = language.block.filter(|(open, _)| rest.starts_with(open)) {
            self.open = Some((close, Ink::Comment));
            return (open.len(), Ink::Comment);
        }
        let triples = [("\"\"\"", '"'), ("'''", '\'')];
        let triple = triples
            .iter()
            .find(|(t, q)| language.triple && language.quotes.contains(*q) && rest.starts_with(t));
        if let Some((mark, _)) = triple {
            self.open = Some((mark, Ink::Literal));
            return (mark.len(), Ink::Literal);
        }
        let first = rest.chars().next().unwrap_or(' ');
        if language.quotes.contains(first) {
            return (literal(rest, first), Ink::Literal);
        }
        if first.is_ascii_digit() {
            let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '.' && c != '_');
            return (end.unwrap_or(rest.len()), Ink::Number);
        }
        let in_word = |c: char| c.is_alphanumeric() || c == '_';
        if in_word(first) || first == '#' {
            let end = rest[first.len_utf8()..].find(|c| !in_word(c));
            let end = end.map_or(rest.len(), |e| e + first.len_utf8());
            let known = language.words.split(' ').any(|w| w == &rest[..end]);
            return (end, if known { Ink::Keyword } else { Ink::Code });
        }
        (first.len_utf8(), Ink::Code)
    }
}

/// Length of a quoted literal; one that is not closed ends with the line.
fn literal(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if c == quote => return at + c.len_utf8(),
            _ => {}
        }
    }
    text.len()
}

fn diff_ink(line: &str) -> Ink {
    match line.as_bytes().first() {
        Some(b'+') => Ink::Good,
        Some(b'-') => Ink::Error,
        Some(b'@') => Ink::Keyword,
        _ => Ink::Code,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inks(info: &str, lines: &[&str]) -> Vec<Vec<(String, Ink)>> {
        let mut h = Highlighter::new(info);
        lines.iter().map(|l| h.line(l).into_iter().map(|s| (s.text, s.ink)).collect()).collect()
    }

    #[test]
    fn tokens_are_told_apart_over_lines() {
        let got = inks("rust", &["let x = \"a\\\"b\"; // why", "/* on", "and */ 1_0u8"]);
        let words = |row: &[(String, Ink)], ink| -> Vec<String> {
            row.iter().filter(|s| s.1 == ink).map(|s| s.0.clone()).collect()
        };
        assert_eq!(words(&got[0], Ink::Keyword), ["let"]);
        assert_eq!(words(&got[0], Ink::Literal), ["\"a\\\"b\""]);
        assert_eq!(words(&got[0], Ink::Comment), ["// why"]);
        assert_eq!(words(&got[1], Ink::Comment), ["/* on"]);
        assert_eq!(words(&got[2], Ink::Comment), ["and */"]);
        assert_eq!(words(&got[2], Ink::Number), ["1_0u8"]);
        let got = inks("py", &["'''a", "b''' if"]);
        assert_eq!(got[1][0], ("b'''".into(), Ink::Literal));
        assert_eq!(inks("diff", &["-x"])[0][0].1, Ink::Error);
    }

    #[test]
    fn no_character_is_lost_in_any_language() {
        let lines = ["é\"漢'`#/* x */ -- <!-- ''' 12.5e3 ", "", "\\", "''' \"\"\" '"];
        for language in LANGUAGES {
            let mut h = Highlighter::new(language.names[0]);
            for line in lines {
                let all: String = h.line(line).into_iter().map(|s| s.text).collect();
                assert_eq!(all, line, "{}", language.names[0]);
            }
        }
    }
}
