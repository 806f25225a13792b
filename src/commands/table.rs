//! Tables for people: columns as wide as they need be, numbers to the right.

use std::fmt::Write;

/// A table in the making.
#[derive(Clone, Debug, Default)]
pub struct Table {
    right: Vec<bool>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Columns: a heading that begins with `>` is for numbers, which go to the right.
    pub fn new(heads: &[&str]) -> Table {
        Table {
            right: heads.iter().map(|h| h.starts_with('>')).collect(),
            rows: vec![heads.iter().map(|h| h.trim_start_matches('>').to_owned()).collect()],
        }
    }

    /// Adds a row; it has as many cells as there are columns.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// Lines without the last line's end.
    pub fn render(&self) -> String {
        let width = |c: usize| self.rows.iter().map(|r| r[c].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..self.right.len()).map(width).collect();
        let mut out = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for ((cell, width), right) in row.iter().zip(&widths).zip(&self.right) {
                // Writing to a String cannot fail.
                let _ = match right {
                    true => write!(line, "{cell:>width$}  "),
                    false => write!(line, "{cell:<width$}  "),
                };
            }
            out.push_str(line.trim_end());
            out.push('\n');
        }
        out.pop();
        out
    }
}

#[cfg(test)]
mod tests {
    use super::Table;

    #[test]
    fn numbers_go_right_and_lines_end_without_blanks() {
        let mut t = Table::new(&["name", ">size"]);
        t.row(["a".into(), "10".into()]);
        t.row(["größe".into(), "7".into()]);
        assert_eq!(t.render(), "name   size\na        10\ngröße     7");
    }
}
