"""Messages and who carries them: workers, ranks and devices, their registration, admission and reception."""
