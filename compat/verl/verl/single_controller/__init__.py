"""burnish's single controller: workers, how calls are split over them, and groups of them on Ray."""
