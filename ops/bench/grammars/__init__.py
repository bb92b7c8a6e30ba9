"""What grammars cost: steps of rows that follow one schema, and a batch of as many schemas as rows."""
