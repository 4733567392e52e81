# Connect four in Perl: a column with room, as near to the middle as there is. Lines of JSON, see docs/agents.md.
# Bare perl has no JSON module; what is asked here is plain enough for a pattern.
use strict;
use warnings;

$| = 1;  # an answer that waits in a buffer is a timeout

while (my $line = <STDIN>) {
    if ($line =~ /"type":\s*"init"/) {
        my ($seat) = $line =~ /"player_id":\s*(\d+)/;
        print STDERR "in seat $seat\n";
        print "{\"ready\": true}\n";
    } elsif ($line =~ /"type":\s*"act"/) {
        my ($numbers) = $line =~ /"observation":\s*\[([^\]]*)\]/;
        my @board = split /,/, $numbers;
        my ($column) = grep { $board[$_] == 0 } (3, 2, 4, 1, 5, 0, 6);
        print "{\"action\": $column}\n";
    } elsif ($line =~ /"type":\s*"end"/) {
        last;
    }
}
