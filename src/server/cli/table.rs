//! Tables for people.

/// Rows under headings, in columns as wide as their widest cell. Cells are made to stay on their line.
pub(super) fn table(headings: &[&str], rows: &[Vec<String>]) -> String {
    let rows: Vec<Vec<String>> =
        std::iter::once(headings.iter().map(|h| (*h).to_owned()).collect())
            .chain(
                rows.iter()
                    .map(|row| row.iter().map(|c| one_line(c)).collect()),
            )
            .collect();
    let widths: Vec<usize> = (0..headings.len())
        .map(|column| {
            let cells = rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        })
        .collect();
    let lines = rows.iter().map(|row| {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            line.push_str(cell);
            let padding = width.saturating_sub(cell.chars().count()) + 2;
            line.push_str(&" ".repeat(padding));
        }
        line.trim_end().to_owned()
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// A text without characters that would break a line or steer a terminal.
pub(super) fn one_line(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_by_characters() {
        let rows = [
            vec!["wéb".to_owned(), "yes".to_owned()],
            vec!["a-long-name".to_owned(), "no\nor so".to_owned()],
        ];
        let text = table(&["ID", "READY"], &rows);
        assert_eq!(
            text,
            "ID           READY\nwéb          yes\na-long-name  no or so"
        );
    }
}
